"""Auxiliary losses on the actor's representation z = features(o), by name: config.algorithm.auxiliary.

temporal   info_nce(G(z_t, a_t) W z_{t+1}^T)                           TACO 2306.13229, K = 1
views      info_nce or robust on two masked views of each observation     CLAM 2401.00132, iSogCLR 2305.11965
anchors    anchored on two masked views: a moving average and a tau for each observation      iSogCLR 2305.11965
reward_and_state    cross entropy of the reward's sign and the square of the state, from z     Lucy-SKG 2305.15801
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.types import Params
from rl_jax.losses import contrastive


class Auxiliary(NamedTuple):
    """A loss beside the policy's.

    Attributes:
      init: (key) -> params of its own; they are trained with the agent's.
      loss: (params, features, observations [n, ...], actions float [n, A], next_observations [n, ...], key) -> float
        []; features: observations -> z [n, width], differentiated too.
      coef: its weight.
      begin: () -> what it keeps from minibatch to minibatch; None keeps nothing.
      observe: (params, features, observations, key, kept, axis_name) -> (kept, {name: float [n, ...]}); the dict is
        what `loss` gets as its last argument, `remembered`.
      reads_extras: whether `loss` gets the batch's extras as its last argument though it keeps nothing.
    """

    init: Callable
    loss: Callable
    coef: float | chex.Array
    begin: Callable | None = None
    observe: Callable | None = None
    reads_extras: bool = False


def temporal(*, width: int, action_size: int, make_net: Callable, coef: float = 0.1, rows: int = 128) -> Auxiliary:
    """Which next state follows (s, a)? Rows of the minibatch are each other's wrong answers.

    Source: arXiv 2306.13229 (TACO). Departs: one action (K = 1, as there on some tasks), the target is the current
    encoder without gradient, and there is no second augmentation and no prediction of rewards.

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


def views(
    *,
    width: int,
    make_net: Callable,
    kind: str = "info_nce",
    hidden_share: float = 0.3,
    rho: float = 0.3,
    floor: float = 0.05,
    coef: float = 0.1,
    rows: int = 128,
) -> Auxiliary:
    """Two views of an observation, each with other features hidden, have to be told from those of other observations.

    Source: arXiv 2401.00132 (CLAM: masked views of the same episode are positives) with kind "info_nce"; 2305.11965
    (iSogCLR) with "robust". Departs: single observations in place of windows with attention pooling.

    Args:
      width: of z.
      make_net: models.agents.features.make_net.
      kind: "info_nce" or "robust".
      hidden_share: of the features, in each view.
      rho: of robust.
      floor: smallest temperature; info_nce takes it as its only one.
      coef: weight.
      rows: of the minibatch that are contrasted, the first ones.

    Raises:
      ValueError: if the kind is unknown.
    """
    if kind not in ("info_nce", "robust"):
        raise ValueError(f"views: kind={kind!r} must be info_nce or robust")
    net = make_net(width, width, hidden=(width,))

    def loss(params, features, observations, actions, next_observations, key) -> chex.Array:
        left, right = two_views(net, params, features, observations[:rows], key, hidden_share)
        if kind == "robust":
            return jnp.mean(contrastive.robust(left @ right.T, rho=rho, floor=floor)[0])
        return jnp.mean(contrastive.info_nce(left @ right.T / floor))

    return Auxiliary(net.init, loss, coef)


def two_views(net, params, features, seen, key, hidden_share: float) -> list[chex.Array]:
    """Codes of about length 1 of two views of each observation, float [n, width] twice; each hides other features."""
    kept = [jax.random.bernoulli(k, 1.0 - hidden_share, seen.shape) for k in jax.random.split(key)]
    codes = [net.apply(params, features(seen * mask)) for mask in kept]
    # Not the norm: at 0, where every feature is hidden, its gradient is nan. The 0.01 keeps this one small there.
    return [x * jax.lax.rsqrt(jnp.sum(jnp.square(x), axis=1, keepdims=True) + 1e-2) for x in codes]


def anchors(
    *,
    width: int,
    make_net: Callable,
    hidden_share: float = 0.3,
    rho: float = 0.3,
    tau: float = 0.07,
    slots: int = 4096,
    grain: float = 0.1,
    coef: float = 0.1,
    rows: int = 128,
    **steps: float,
) -> Auxiliary:
    """As `views`, with a moving average and a temperature for each observation (losses.contrastive.follow).

    Source: arXiv 2305.11965 (iSogCLR). Negatives are both views of the rows of other anchors, as there. Departs: a
    stream of observations has no index, so an anchor is a slot that the observation's features hash to; rho is smaller
    than the code's 6, as log of the number of negatives is its largest value that says something.

    Args:
      width: of z.
      make_net: models.agents.features.make_net.
      hidden_share: of the features, in each view.
      rho: of follow.
      tau: at the start.
      slots: number of anchors.
      grain: features that round to the same multiple of it are the same; of the observation as the loss reads it.
      coef: weight.
      rows: of the minibatch that are contrasted, the first ones.
      **steps: further numbers of follow: rate, momentum, step_size, clip.
    """
    net = make_net(width, width, hidden=(width,))

    def contrasts(params, features, observations, key):
        seen, slot = observations[:rows], slots_of(observations[:rows], slots, grain)
        codes = jnp.concatenate(two_views(net, params, features, seen, key, hidden_share))
        slot = jnp.concatenate([slot, slot])
        return codes @ codes.T, slot[:, None] != slot[None, :], slot

    def observe(params, features, observations, key, kept, axis_name=None):
        scores, negatives, slot = contrasts(params, features, observations, key)
        kept, used, average = contrastive.follow(kept, slot, scores, negatives, rho=rho, axis_name=axis_name, **steps)
        pair = jnp.stack([used, average], axis=1).reshape(2, -1, 2).swapaxes(0, 1)
        return kept, {"anchors": jnp.pad(pair, ((0, len(observations) - len(pair)), (0, 0), (0, 0)))}

    def loss(params, features, observations, actions, next_observations, key, remembered) -> chex.Array:
        scores, negatives, slot = contrasts(params, features, observations, key)
        used, average = jnp.moveaxis(remembered["anchors"][:rows], (0, 1, 2), (2, 1, 0)).reshape(2, -1)
        positives = jnp.roll(scores, len(scores) // 2, axis=1).diagonal()
        return 2.0 * jnp.mean(contrastive.anchored(scores, positives, negatives, used, average))

    return Auxiliary(net.init, loss, coef, lambda: contrastive.new_anchors(slots, tau=tau), observe)


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

    Source: arXiv 2305.15801 (Lucy-SKG), whose two auxiliary networks are a reward prediction and a representation of
    the state; their layers, inputs and weights could not be read (a single step is read here), nor the threshold.

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
        classes = 1 + (rewards > threshold).astype(jnp.int32) - (rewards < -threshold).astype(jnp.int32)
        said = jax.nn.log_softmax(heads["reward"].apply(params["reward"], jnp.concatenate([z, actions], axis=1)))
        of_rewards = -jnp.mean(jnp.take_along_axis(said, classes[:, None], axis=1))
        seen = jax.lax.stop_gradient(observations.reshape(len(observations), -1))
        of_states = jnp.mean(jnp.square(heads["state"].apply(params["state"], z) - seen))
        return reward_coef * of_rewards + state_coef * of_states

    return Auxiliary(init, loss, coef, reads_extras=True)


def slots_of(observations: chex.Array, slots: int, grain: float) -> chex.Array:
    """The slot of each observation, int32 [n] below `slots`: equal ones share it, others do by chance 1 / slots."""
    whole = jnp.round(observations.reshape(len(observations), -1) / grain).astype(jnp.int32).astype(jnp.uint32)
    odd = jax.random.bits(jax.random.key(0), (whole.shape[1],)) | jnp.uint32(1)
    mixed = jnp.sum((whole + 1) * odd[None], axis=1, dtype=jnp.uint32)
    mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(0x85EBCA6B)
    return ((mixed ^ (mixed >> 13)) % jnp.uint32(slots)).astype(jnp.int32)
