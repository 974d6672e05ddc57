"""Losses of single steps: which state follows, what the state and the reward were."""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.auxiliary.base import Auxiliary
from rl_jax.core.types import Params
from rl_jax.losses import contrastive


def temporal(*, width: int, action_size: int, make_net: Callable, coef: float = 0.1, rows: int = 128) -> Auxiliary:
    """Which next state follows (s, a)? Rows of the minibatch are each other's wrong answers.

    Source: the first of the three terms of arXiv 2306.13229 (TACO), with one action (K = 1); `taco` has all of them.

    Args:
      width: of z.
      action_size: numbers of an action; discrete ones are one-hot.
      make_net: models.agents.features.make_net.
      coef: weight.
      rows: of the minibatch that are contrasted, the first ones.
    """
    net = make_net(width + action_size, width, hidden=(width,))

    def init(key: chex.PRNGKey) -> Params:
        net_key, map_key = jax.random.split(key)
        return {"net": net.init(net_key), "map": jax.random.normal(map_key, (width, width)) / width}

    def loss(params, features, observations, actions, next_observations, key) -> chex.Array:
        now, after = (features(x[:rows]) for x in (observations, next_observations))
        query = net.apply(params["net"], jnp.concatenate([now, actions[:rows]], axis=1))
        return jnp.mean(contrastive.info_nce(query @ params["map"] @ jax.lax.stop_gradient(after).T))

    return Auxiliary(init, loss, coef)


def sign_entropy(logits: chex.Array, rewards: chex.Array, threshold: float) -> chex.Array:
    """The cross entropy of whether each reward is below, about or above 0, float [n].

    Args:
      logits: float [n, 3].
      rewards: float [n].
      threshold: a reward of at most this size is about 0.
    """
    chex.assert_shape(logits, (len(rewards), 3))
    classes = 1 + (rewards > threshold).astype(jnp.int32) - (rewards < -threshold).astype(jnp.int32)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), classes[:, None], axis=1)[:, 0]


def reward_and_state(
    *,
    width: int,
    action_size: int,
    make_net: Callable,
    state_size: int,
    threshold: float = 0.01,
    reward_coef: float = 1.0,
    state_coef: float = 1.0,
    coef: float = 0.1,
) -> Auxiliary:
    """The layers of the actor have to say what the state was, and whether a step's reward is below, about or above 0.

        c_r CE(head_r(z, a), sign class of r) + c_s mean (head_s(z) - o)^2

    Source: after arXiv 2305.15801 (Lucy-SKG), smaller: the published networks and losses, with a sequence of steps and
    no action, are `reward_sequence_and_state`. The threshold is ours.

    Args:
      width: of z.
      action_size: numbers of an action; discrete ones are one-hot.
      make_net: models.agents.features.make_net.
      state_size: numbers of an observation.
      threshold: a reward of at most this size is about 0.
      reward_coef: c_r.
      state_coef: c_s.
      coef: weight of both.
    """
    heads = {
        "reward": make_net(width + action_size, 3, hidden=(width,)),
        "state": make_net(width, state_size, hidden=(width,)),
    }

    def init(key: chex.PRNGKey) -> Params:
        keys = jax.random.split(key, len(heads))
        return {name: head.init(k) for k, (name, head) in zip(keys, heads.items(), strict=True)}

    def loss(params, features, observations, actions, next_observations, key, extras) -> chex.Array:
        z, rewards = features(observations), extras["step_rewards"].reshape(-1)
        chex.assert_equal_shape_prefix([z, actions, rewards], 1)
        logits = heads["reward"].apply(params["reward"], jnp.concatenate([z, actions], axis=1))
        of_rewards = jnp.mean(sign_entropy(logits, rewards, threshold))
        seen = jax.lax.stop_gradient(observations.reshape(len(observations), -1))
        of_states = jnp.mean(jnp.square(heads["state"].apply(params["state"], z) - seen))
        return reward_coef * of_rewards + state_coef * of_states

    return Auxiliary(init, loss, coef, reads_extras=True)
