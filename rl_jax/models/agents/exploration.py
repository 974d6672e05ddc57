"""How off-policy agents act: greedily, with noise, and at random with a probability that the caller sets per step.

They are `Distribution`s for the rollout (rl_jax.rollout.envs.steps), which samples and takes modes. Acting of replay
needs no densities, so `greedy` and `noisy` have none.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.models.agents.distributions import Distribution, tanh_gaussian


def _bounds(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError(f"actions of replay need finite bounds, there are {low} and {high}")
    return low, high


def _no_density(*_):
    raise ValueError("a policy without a density has no log_prob, entropy or kl: use categorical or tanh_gaussian")


def greedy(num_actions: int) -> Distribution:
    """The action of the largest output, values float [..., A]."""

    def mode(outputs: chex.Array) -> chex.Array:
        return jnp.argmax(outputs, axis=-1).astype(jnp.int32)

    def noise(key: chex.PRNGKey, shape: tuple[int, ...]) -> chex.Array:
        return jnp.zeros(shape)

    return Distribution(
        num_actions, noise, lambda outputs, noise: mode(outputs), mode, _no_density, _no_density, lambda a: a,
        _no_density,
    )  # fmt: skip


def noisy(low: np.ndarray, high: np.ndarray, *, std: float = 0.1, clip: float = np.inf) -> Distribution:
    """tanh(outputs) plus clipped Gaussian noise, scaled to the bounds: DDPG's acting and TD3's smoothed target.

        a = middle + half clip(tanh(o) + clip(std z, -c, c), -1, 1)

    Actions are in the environment's units.

    Args:
      low: finite, [D].
      high: finite, [D].
      std: of the noise, in halves of the range; may be traced.
      clip: c.

    Raises:
      ValueError: if a bound is not finite.
    """
    low, high = _bounds(low, high)
    half, middle = 0.5 * (high - low), 0.5 * (high + low)

    def scaled(x: chex.Array) -> chex.Array:
        return jnp.broadcast_to(middle, x.shape) + jnp.broadcast_to(half, x.shape) * x

    def mode(outputs: chex.Array) -> chex.Array:
        return scaled(jnp.tanh(outputs))

    def noise(key: chex.PRNGKey, shape: tuple[int, ...]) -> chex.Array:
        return jax.random.normal(key, (*shape, low.size))

    def sample(outputs: chex.Array, noise: chex.Array) -> chex.Array:
        moved = jnp.tanh(outputs) + jnp.clip(std * noise, -clip, clip)
        return scaled(jnp.clip(moved, -1.0, 1.0))

    return Distribution(low.size, noise, sample, mode, _no_density, _no_density, lambda a: a, _no_density)


def squashed(low: np.ndarray, high: np.ndarray) -> Distribution:
    """`tanh_gaussian` whose densities are those of the action scaled to [-1, 1], as SAC's target entropy counts them.

    Args:
      low: finite, [D].
      high: finite, [D].

    Raises:
      ValueError: if a bound is not finite.
    """
    own = tanh_gaussian(*_bounds(low, high))
    ones = np.ones(np.shape(low), np.float32)
    return tanh_gaussian(-ones, ones)._replace(to_env=own.to_env)


def uniform_actions(distribution: Distribution, low: np.ndarray | None, high: np.ndarray | None) -> Callable:
    """(key, shape) -> actions as the distribution stores them, uniform over the space.

    Args:
      distribution: `greedy` or `categorical` if low is None; else `noisy`, or `squashed`, whose actions are stored
        before the squash.
      low: finite, [D], or None.
      high: finite, [D], or None.
    """
    if low is None:
        return lambda key, shape: jax.random.randint(key, shape, 0, distribution.num_outputs, dtype=jnp.int32)
    size, before_squash = np.size(low), distribution.num_outputs == 2 * np.size(low)

    def sample(key: chex.PRNGKey, shape: tuple[int, ...]) -> chex.Array:
        unit = jax.random.uniform(key, (*shape, size), minval=-1.0, maxval=1.0)
        if before_squash:
            return jnp.arctanh(jnp.clip(unit, -0.9999, 0.9999))
        return (
            jnp.broadcast_to(0.5 * (high + low), unit.shape) + jnp.broadcast_to(0.5 * (high - low), unit.shape) * unit
        )

    return sample


def exploring(distribution: Distribution, uniform: Callable) -> Distribution:
    """`distribution` with one more output, the last: the probability of a uniform action. 1 at the start, say.

    Args:
      distribution: any.
      uniform: (key, shape) -> actions, see `uniform_actions`.
    """

    def noise(key: chex.PRNGKey, shape: tuple[int, ...]):
        own_key, coin_key, action_key = jax.random.split(key, 3)
        return distribution.noise(own_key, shape), jax.random.uniform(coin_key, shape), uniform(action_key, shape)

    def sample(outputs: chex.Array, noise) -> chex.Array:
        own, coin, random = noise
        chosen = distribution.sample(outputs[..., :-1], own)
        at_random = coin < outputs[..., -1]
        return jnp.where(at_random.reshape(at_random.shape + (1,) * (chosen.ndim - at_random.ndim)), random, chosen)

    return distribution._replace(
        num_outputs=distribution.num_outputs + 1,
        noise=noise,
        sample=sample,
        mode=lambda outputs: distribution.mode(outputs[..., :-1]),
        log_prob=_no_density,
        entropy=_no_density,
        kl=_no_density,
    )
