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


def residual(
    low: np.ndarray, high: np.ndarray, *, scale: float, std: float = 0.05, clip: float = np.inf
) -> Distribution:
    """A fixed policy's action and a bounded correction of it, plus clipped Gaussian noise.

        a = middle + half clip(b + scale tanh(o) + clip(std z, -c, c), -1, 1)

    Outputs are (b, o), 2 D. Actions are in the environment's units. Source: arXiv 2509.19301 (ResFiT).

    Args:
      low: finite, [D].
      high: finite, [D].
      scale: the largest correction, in halves of the range. 0 is the fixed policy.
      std: of the noise, in halves of the range.
      clip: c.

    Raises:
      ValueError: if a bound is not finite.
    """
    own = noisy(low, high, std=std, clip=clip)
    low, high = _bounds(low, high)
    half, middle, size = 0.5 * (high - low), 0.5 * (high + low), low.size

    def sample(outputs: chex.Array, noise: chex.Array) -> chex.Array:
        wanted = outputs[..., :size] + scale * jnp.tanh(outputs[..., size:])
        moved = jnp.clip(wanted + jnp.clip(std * noise, -clip, clip), -1.0, 1.0)
        return jnp.broadcast_to(middle, moved.shape) + jnp.broadcast_to(half, moved.shape) * moved

    def mode(outputs: chex.Array) -> chex.Array:
        return sample(outputs, jnp.zeros_like(outputs[..., :size]))

    return own._replace(num_outputs=2 * size, sample=sample, mode=mode)


def drawn(size: int, to_env: Callable) -> Distribution:
    """The actions of a policy that has drawn them itself: outputs are (the drawn action, its mode), 2 D, as stored.

    Args:
      size: D.
      to_env: actions as they are stored -> in the environment's units.
    """

    def sample(outputs: chex.Array, noise: chex.Array) -> chex.Array:
        return outputs[..., :size]

    def noise(key: chex.PRNGKey, shape: tuple[int, ...]) -> chex.Array:
        return jnp.zeros(shape)

    def mode(outputs: chex.Array) -> chex.Array:
        return outputs[..., size:]

    return Distribution(2 * size, noise, sample, mode, _no_density, _no_density, to_env, _no_density)


def searched(num_actions: int) -> Distribution:
    """The actions of a policy that has searched for them: outputs are (action, best action, value, improved policy).

    They are 3 + A; the value and the policy are for the replay.

    Args:
      num_actions: A.
    """

    def sample(outputs: chex.Array, noise: chex.Array) -> chex.Array:
        return outputs[..., 0].astype(jnp.int32)

    def noise(key: chex.PRNGKey, shape: tuple[int, ...]) -> chex.Array:
        return jnp.zeros(shape)

    def mode(outputs: chex.Array) -> chex.Array:
        return outputs[..., 1].astype(jnp.int32)

    size = 3 + num_actions
    return Distribution(size, noise, sample, mode, _no_density, _no_density, lambda a: a, _no_density)


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


def uniform_actions(
    distribution: Distribution, low: np.ndarray | None, high: np.ndarray | None, *, stored_before_squash: bool = False
) -> Callable:
    """(key, shape) -> actions as the distribution stores them, uniform over the space.

    Args:
      distribution: `greedy` or `categorical` if low is None.
      low: finite, [D], or None.
      high: finite, [D], or None.
      stored_before_squash: of `squashed`, whose actions are stored so.
    """
    if low is None:
        return lambda key, shape: jax.random.randint(key, shape, 0, distribution.num_outputs, dtype=jnp.int32)
    size = np.size(low)

    def sample(key: chex.PRNGKey, shape: tuple[int, ...]) -> chex.Array:
        unit = jax.random.uniform(key, (*shape, size), minval=-1.0, maxval=1.0)
        if stored_before_squash:
            return jnp.arctanh(jnp.clip(unit, -0.9999, 0.9999))
        return (
            jnp.broadcast_to(0.5 * (high + low), unit.shape) + jnp.broadcast_to(0.5 * (high - low), unit.shape) * unit
        )

    return sample


def exploring(distribution: Distribution, uniform: Callable, *, around: Callable | None = None) -> Distribution:
    """`distribution` with one more output, the last: the probability of a uniform action. 1 at the start, say.

    Args:
      distribution: any.
      uniform: (key, shape) -> actions, see `uniform_actions`.
      around: (outputs, uniform actions) -> actions, if they are to lie around what the outputs say (of a residual
        policy, around its fixed one).
    """

    def noise(key: chex.PRNGKey, shape: tuple[int, ...]):
        own_key, coin_key, action_key = jax.random.split(key, 3)
        return distribution.noise(own_key, shape), jax.random.uniform(coin_key, shape), uniform(action_key, shape)

    def sample(outputs: chex.Array, noise) -> chex.Array:
        own, coin, random = noise
        if around is not None:
            random = around(outputs[..., :-1], random)
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


def to_stored(low: np.ndarray, high: np.ndarray, *, before_squash: bool) -> Callable:
    """The function from the environment's actions [..., D] to those that a distribution stores.

    Args:
      low: finite, [D].
      high: finite, [D].
      before_squash: of `squashed`, which stores arctanh of the action scaled to [-1, 1].
    """

    def stored(actions: chex.Array) -> chex.Array:
        if not before_squash:
            return actions
        middle, half = (jnp.broadcast_to(x, actions.shape) for x in (0.5 * (high + low), 0.5 * (high - low)))
        unit = (actions - middle) / half
        return jnp.arctanh(jnp.clip(unit, -0.9999, 0.9999))

    return stored


def intervened(distribution: Distribution, size: int) -> Distribution:
    """`distribution` with D + 1 more outputs, the last: the expert's action as it is stored, and 1 if it is taken.

    Args:
      distribution: of real actions.
      size: D.
    """
    own = -(size + 1)

    def sample(outputs: chex.Array, noise) -> chex.Array:
        return jnp.where(outputs[..., -1:] > 0, outputs[..., own:-1], distribution.sample(outputs[..., :own], noise))

    def mode(outputs: chex.Array) -> chex.Array:
        return jnp.where(outputs[..., -1:] > 0, outputs[..., own:-1], distribution.mode(outputs[..., :own]))

    return distribution._replace(num_outputs=distribution.num_outputs + size + 1, sample=sample, mode=mode)


def each_greedy(agents: int, num_actions: int) -> Distribution:
    """The action of the largest value of each of A agents, or a uniform one; outputs are A n values and a probability.

    Each agent throws its own coin, as in PyMARL's epsilon-greedy selector. Actions are int32 [..., A].

    Args:
      agents: A.
      num_actions: n, of each agent.
    """

    def mode(outputs: chex.Array) -> chex.Array:
        values = outputs[..., :-1].reshape(*outputs.shape[:-1], agents, num_actions)
        return jnp.argmax(values, axis=-1).astype(jnp.int32)

    def noise(key: chex.PRNGKey, shape: tuple[int, ...]):
        coin_key, action_key = jax.random.split(key)
        random = jax.random.randint(action_key, (*shape, agents), 0, num_actions, dtype=jnp.int32)
        return jax.random.uniform(coin_key, (*shape, agents)), random

    def sample(outputs: chex.Array, noise) -> chex.Array:
        coin, random = noise
        share = jnp.broadcast_to(outputs[..., -1:], coin.shape)
        return jnp.where(coin < share, random, mode(outputs))

    count = agents * num_actions + 1
    return Distribution(count, noise, sample, mode, _no_density, _no_density, lambda a: a, _no_density)
