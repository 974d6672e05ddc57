"""Action distributions as pure functions on a network's outputs: a choice of functions, no class of its own.

A `Distribution` draws with noise that comes from outside, so that the noise of many steps is made in one call, and
says what an action's log-prob is. The actions of `tanh_gaussian` are kept before the tanh: it saturates in float32,
and the log of what is left of its slope would be lost.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

LOG_TWO_PI = math.log(2.0 * math.pi)
MIN_LOG_STD, MAX_LOG_STD = -5.0, 2.0


class Distribution(NamedTuple):
    """num_outputs: what the network has to give for each state, float [..., num_outputs].

    noise: (key, shape) -> [*shape, ...], what `sample` takes. sample: (outputs, noise) -> actions. mode: (outputs) ->
    actions. log_prob: (outputs, actions) -> float [...]. entropy: (outputs) -> float [...], in nats.
    to_env: actions -> what the environment reads.
    """

    num_outputs: int
    noise: Callable
    sample: Callable
    mode: Callable
    log_prob: Callable
    entropy: Callable
    to_env: Callable


def categorical(num_actions: int) -> Distribution:
    """softmax(outputs) over num_actions; actions int32 [...]."""

    def noise(key: chex.PRNGKey, shape: tuple[int, ...]) -> chex.Array:
        return jax.random.gumbel(key, (*shape, num_actions))

    def sample(outputs: chex.Array, noise: chex.Array) -> chex.Array:
        chex.assert_equal_shape([outputs, noise])
        return jnp.argmax(outputs + noise, axis=-1).astype(jnp.int32)

    def log_prob(outputs: chex.Array, actions: chex.Array) -> chex.Array:
        # A sum over few actions instead of a gather, whose gradient would be a scatter.
        chosen = jax.nn.one_hot(actions, num_actions, dtype=outputs.dtype)
        return jnp.sum(jax.nn.log_softmax(outputs) * chosen, axis=-1)

    def entropy(outputs: chex.Array) -> chex.Array:
        log_probs = jax.nn.log_softmax(outputs)
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)

    def mode(outputs: chex.Array) -> chex.Array:
        return jnp.argmax(outputs, axis=-1).astype(jnp.int32)

    return Distribution(num_actions, noise, sample, mode, log_prob, entropy, lambda actions: actions)


def _log_slope(u: chex.Array) -> chex.Array:
    """log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which does not round to log 0."""
    return 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u))


def tanh_gaussian(low: np.ndarray, high: np.ndarray, *, points: int = 16) -> Distribution:
    """a = middle + half tanh(u), u ~ N(mean, std^2) for each of D coordinates: every action is inside (low, high).

        log pi(a) = sum_d log N(u; mean, std) - log(1 - tanh(u)^2) - log half.

    low, high: finite, [D]. Actions are kept as u, float32 [..., D]; to_env gives a. outputs: means and log stds, 2 D.
    points: of the Gauss-Hermite quadrature of the entropy, which has no closed form: H = H_N + sum_d E log(da/du).
    Raises ValueError where a bound is not finite.
    """
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError(f"tanh_gaussian needs finite bounds, there are {low} and {high}")
    size, half, middle = low.size, 0.5 * (high - low), 0.5 * (high + low)
    log_half = float(np.sum(np.log(half)))
    nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    nodes, weights = nodes.astype(np.float32), (weights / weights.sum()).astype(np.float32)

    def split(outputs: chex.Array) -> tuple[chex.Array, chex.Array]:
        chex.assert_axis_dimension(outputs, -1, 2 * size)
        return outputs[..., :size], jnp.clip(outputs[..., size:], MIN_LOG_STD, MAX_LOG_STD)

    def noise(key: chex.PRNGKey, shape: tuple[int, ...]) -> chex.Array:
        return jax.random.normal(key, (*shape, size))

    def sample(outputs: chex.Array, noise: chex.Array) -> chex.Array:
        mean, log_std = split(outputs)
        return mean + jnp.exp(log_std) * noise

    def log_prob(outputs: chex.Array, actions: chex.Array) -> chex.Array:
        mean, log_std = split(outputs)
        chex.assert_equal_shape([mean, actions])
        z = (actions - mean) * jnp.exp(-log_std)
        normal = -0.5 * (jnp.square(z) + LOG_TWO_PI) - log_std
        return jnp.sum(normal - _log_slope(actions), axis=-1) - log_half

    def entropy(outputs: chex.Array) -> chex.Array:
        mean, log_std = split(outputs)
        shape = (*mean.shape, points)
        at = mean[..., None] + jnp.exp(log_std)[..., None] * jnp.broadcast_to(nodes, shape)
        slope = jnp.sum(_log_slope(at) * jnp.broadcast_to(weights, shape), axis=-1)
        return jnp.sum(0.5 * (1.0 + LOG_TWO_PI) + log_std + slope, axis=-1) + log_half

    def to_env(actions: chex.Array) -> chex.Array:
        return jnp.broadcast_to(middle, actions.shape) + jnp.broadcast_to(half, actions.shape) * jnp.tanh(actions)

    return Distribution(2 * size, noise, sample, lambda outputs: split(outputs)[0], log_prob, entropy, to_env)
