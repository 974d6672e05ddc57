"""TACO: which state follows several actions, which view is of the same state, and what the steps pay.

    z_t = tanh(norm(P features(aug o_t))),   u_t = U(a_t),   q_t = G(z_t, u_t, ..., u_{t+K-1})
    L = CE(q W sg(z_{t+K})^T) + CE(z W sg(z')^T) + mean (R(z_t, u_t, ..., u_{t+K-1}) - sum_{i<K} gamma^i r_{t+i})^2

CE has the diagonal as its labels: the other rows are the wrong answers. z' is of a second augmentation of o_t (CURL).
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.auxiliary.base import Auxiliary
from rl_jax.core.masked import masked_mean
from rl_jax.core.types import Params
from rl_jax.losses import contrastive


def steps_ahead(
    observations: chex.Array,
    next_observations: chex.Array,
    actions: chex.Array,
    rewards: chex.Array,
    done: chex.Array,
    *,
    steps: int,
    discount: float,
) -> dict[str, chex.Array]:
    """What K steps from each step on are and lead to, as far as they are of one episode and of the rollout.

    Args:
      observations: [B, T, ...]; not read.
      next_observations: [B, T, ...], before any reset.
      actions: float [B, T, A].
      rewards: float [B, T].
      done: bool [B, T].
      steps: K.
      discount: gamma.

    Returns:
      {"ahead_observations" [B, T, ...] of t + K, "ahead_actions" [B, T, K, A], "ahead_rewards" float [B, T], the
      discounted sums, "ahead_valid" bool [B, T]}. Where it is not valid the others are of some other step.
    """
    chex.assert_equal_shape([rewards, done])
    rows, length = rewards.shape
    index = jnp.arange(length)[:, None] + jnp.arange(steps)[None]
    taken = jnp.minimum(index, length - 1)
    crossed = jnp.any(done[:, taken[:, :-1]], axis=-1) if steps > 1 else jnp.zeros((rows, length), bool)
    return {
        "ahead_observations": next_observations[:, taken[:, -1]],
        "ahead_actions": actions[:, taken],
        "ahead_rewards": rewards[:, taken] @ discount ** jnp.arange(steps),
        "ahead_valid": (index[:, -1] < length)[None] & ~crossed,
    }


def augmented(observations: chex.Array, key: chex.PRNGKey, *, hidden_share: float, pad: int) -> chex.Array:
    """Images [n, H, W, C] shifted by up to `pad` pixels, edges repeated (DrQ); other observations with features hidden.

    Args:
      observations: [n, ...].
      key: for the shifts, or for what is hidden.
      hidden_share: of the features of what is no image.
      pad: of images.
    """
    if observations.ndim != 4:
        return observations * jax.random.bernoulli(key, 1.0 - hidden_share, observations.shape)
    rows, height, width = observations.shape[:3]
    down, right = jax.random.randint(key, (2, rows), -pad, pad + 1)
    ys = jnp.clip(jnp.arange(height)[None] + down[:, None], 0, height - 1)
    xs = jnp.clip(jnp.arange(width)[None] + right[:, None], 0, width - 1)
    return observations[jnp.arange(rows)[:, None, None], ys[:, :, None], xs[:, None, :]]


def taco(
    *,
    width: int,
    action_size: int,
    make_net: Callable,
    steps: int = 3,
    discount: float = 0.99,
    curl_coef: float = 1.0,
    reward_coef: float = 1.0,
    hidden_share: float = 0.1,
    pad: int = 4,
    coef: float = 1.0,
    rows: int = 128,
) -> Auxiliary:
    """TACO's three terms, with weights 1 as there; see the top of this file.

    Source: arXiv 2306.13229, FrankZheng2022/TACO agents/taco.py. Departs: beside PPO, not DrQ-v2; the latent actions
    are read by this loss only, as PPO's critic reads no actions; 128 rows in place of 1,024; the reward is that of the
    K steps (there of DrQ-v2's 3 steps, K is 3 too); observations that are no images have features hidden.

    Args:
      width: of features.
      action_size: numbers of an action, A; discrete ones are one-hot.
      make_net: models.agents.features.make_net.
      steps: K; 3 published, 1 on some tasks.
      discount: gamma of the rewards' sum.
      curl_coef: weight of CURL.
      reward_coef: weight of the rewards.
      hidden_share: of the features of observations that are no images.
      pad: largest shift of images.
      coef: weight of all.
      rows: of the minibatch that are contrasted, the first ones.

    Raises:
      ValueError: if steps is below 1.
    """
    if steps < 1:
        raise ValueError(f"algorithm.auxiliary.steps={steps} must be 1 or more")
    latent = int(1.25 * action_size) + 1
    sizes = {
        "state": (width, width, ()),
        "action": (action_size, latent, (64,)),
        "query": (width + steps * latent, width, (width,)),
        "reward": (width + steps * latent, 1, (width,)),
    }
    nets = {name: make_net(inputs, outputs, hidden=hidden) for name, (inputs, outputs, hidden) in sizes.items()}

    def init(key: chex.PRNGKey) -> Params:
        map_key, *keys = jax.random.split(key, len(nets) + 1)
        params = {name: net.init(k) for k, (name, net) in zip(keys, nets.items(), strict=True)}
        return params | {"map": jax.random.normal(map_key, (width, width)) / width}

    def loss(params, features, observations, actions, next_observations, key, extras) -> chex.Array:
        def code(seen: chex.Array, own: chex.PRNGKey) -> chex.Array:
            x = nets["state"].apply(params["state"], features(augmented(seen, own, hidden_share=hidden_share, pad=pad)))
            x = x - jnp.mean(x, axis=1, keepdims=True)
            return jnp.tanh(x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=1, keepdims=True) + 1e-5))

        taken = {name: extras[f"ahead_{name}"][:rows] for name in ("observations", "actions", "rewards", "valid")}
        seen, valid, keys = observations[:rows], taken["valid"].reshape(-1), jax.random.split(key, 3)
        now, other, later = code(seen, keys[0]), code(seen, keys[1]), code(taken["observations"], keys[2])
        other, later = jax.lax.stop_gradient((other, later))
        latents = nets["action"].apply(params["action"], taken["actions"].reshape(-1, action_size))
        both = jnp.concatenate([now, latents.reshape(len(now), -1)], axis=1)
        query, paid = nets["query"].apply(params["query"], both), nets["reward"].apply(params["reward"], both)[:, 0]
        which = masked_mean(contrastive.info_nce(query @ params["map"] @ later.T, valid), valid)
        views = jnp.mean(contrastive.info_nce(now @ params["map"] @ other.T))
        rewards = masked_mean(jnp.square(paid - taken["rewards"].reshape(-1)), valid)
        return which.value() + curl_coef * views + reward_coef * rewards.value()

    def look(*arrays: chex.Array) -> dict[str, chex.Array]:
        return steps_ahead(*arrays, steps=steps, discount=discount)

    return Auxiliary(init, loss, coef, reads_extras=True, look=look)
