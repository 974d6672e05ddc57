"""Action distributions as pure functions on a network's outputs: a tuple of functions per distribution, no classes.

A `Distribution` samples from noise that is passed in, so that the noise of many steps is generated in one call, and
gives an action's log-prob. The actions of `tanh_gaussian` and `beta` are stored before the squash: it saturates in
float32, and the log of the remaining slope would be lost.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln, digamma

LOG_TWO_PI = math.log(2.0 * math.pi)
MIN_LOG_STD, MAX_LOG_STD = -5.0, 2.0


class Distribution(NamedTuple):
    """An action distribution.

    Attributes:
      num_outputs: size of the network's outputs per state, float [..., num_outputs].
      noise: (key, shape) -> [*shape, ...], the input of `sample`.
      sample: (outputs, noise) -> actions.
      mode: (outputs) -> actions.
      log_prob: (outputs, actions) -> float [...].
      entropy: (outputs) -> float [...], in nats.
      to_env: actions -> the environment's actions.
      kl: (outputs p, outputs q) -> float [...], KL(p || q) in nats.
    """

    num_outputs: int
    noise: Callable
    sample: Callable
    mode: Callable
    log_prob: Callable
    entropy: Callable
    to_env: Callable
    kl: Callable


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

    def kl(outputs: chex.Array, others: chex.Array) -> chex.Array:
        log_probs = jax.nn.log_softmax(outputs)
        return jnp.sum(jnp.exp(log_probs) * (log_probs - jax.nn.log_softmax(others)), axis=-1)

    return Distribution(num_actions, noise, sample, mode, log_prob, entropy, lambda actions: actions, kl)


def _log_slope(u: chex.Array) -> chex.Array:
    """log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which does not round to log 0."""
    return 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u))


def tanh_gaussian(low: np.ndarray, high: np.ndarray, *, points: int = 16) -> Distribution:
    """Squashed Gaussian in each of D coordinates: every action is inside (low, high).

        a = middle + half tanh(u), u ~ N(mean, std^2)
        log pi(a) = sum_d log N(u; mean, std) - log(1 - tanh(u)^2) - log half

    Outputs are means and log stds, 2 D. Actions are stored as u, float32 [..., D]; to_env gives a.

    Args:
      low: finite, [D].
      high: finite, [D].
      points: of the Gauss-Hermite quadrature of the entropy, which has no closed form: H = H_N + sum_d E log(da/du).

    Raises:
      ValueError: if a bound is not finite.
    """
    low, high = _finite_bounds("tanh_gaussian", low, high)
    size, log_half = low.size, float(np.sum(np.log(0.5 * (high - low))))
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

    def kl(outputs: chex.Array, others: chex.Array) -> chex.Array:
        (mean, log_std), (other_mean, other_log_std) = split(outputs), split(others)  # both have the same squash
        z = (mean - other_mean) * jnp.exp(-other_log_std)
        ratio = log_std - other_log_std
        return jnp.sum(0.5 * (jnp.exp(2.0 * ratio) + jnp.square(z) - 1.0) - ratio, axis=-1)

    to_env = _into(low, high, jnp.tanh)
    return Distribution(2 * size, noise, sample, lambda outputs: split(outputs)[0], log_prob, entropy, to_env, kl)


def beta(low: np.ndarray, high: np.ndarray, *, proposals: int = 8) -> Distribution:
    """Beta distribution in each of D coordinates, with one mode and no mass outside the bounds.

        a = low + (high - low) x, x ~ Beta(alpha, beta), alpha and beta = 1 + softplus(outputs)
        log pi(a) = sum_d (alpha - 1) log x + (beta - 1) log(1 - x) - log B(alpha, beta) - log(high - low)

    alpha = beta = 1 is uniform. Outputs are 2 D, those of alpha first. Actions are stored as u = logit(x), float32
    [..., D]; to_env gives a. Source: Chou et al., ICML 2017; arXiv 2504.17838 and its code.

    Args:
      low: finite, [D].
      high: finite, [D].
      proposals: x = g / (g + g'), both gamma variables by Marsaglia and Tsang's rejection, whose proposals are
        generated in advance; each is accepted with a probability above .95, so that all eight are rejected less than
        once in 10^10.

    Raises:
      ValueError: if a bound is not finite.
    """
    low, high = _finite_bounds("beta", low, high)
    size, log_range = low.size, float(np.sum(np.log(high - low)))

    def split(outputs: chex.Array) -> tuple[chex.Array, chex.Array]:
        chex.assert_axis_dimension(outputs, -1, 2 * size)
        concentrations = 1.0 + jax.nn.softplus(outputs)
        return concentrations[..., :size], concentrations[..., size:]

    def noise(key: chex.PRNGKey, shape: tuple[int, ...]) -> tuple[chex.Array, chex.Array]:
        normal_key, uniform_key = jax.random.split(key)
        shape = (*shape, 2 * size, proposals)
        return jax.random.normal(normal_key, shape), -jax.random.exponential(uniform_key, shape)  # -Exp(1) is log U

    def sample(outputs: chex.Array, noise: tuple[chex.Array, chex.Array]) -> chex.Array:
        log_gamma = _log_gamma_samples(jnp.concatenate(split(outputs), axis=-1), *noise)
        return log_gamma[..., :size] - log_gamma[..., size:]

    def mode(outputs: chex.Array) -> chex.Array:
        # (alpha - 1) / (alpha + beta - 2) as a logit; exp(o) replaces softplus(o) if that would round to 0.
        log_excess = jnp.where(outputs < -15.0, outputs, jnp.log(jax.nn.softplus(jnp.maximum(outputs, -15.0))))
        return log_excess[..., :size] - log_excess[..., size:]

    def log_prob(outputs: chex.Array, actions: chex.Array) -> chex.Array:
        a, b = split(outputs)
        chex.assert_equal_shape([a, actions])
        log_x, log_rest = jax.nn.log_sigmoid(actions), jax.nn.log_sigmoid(-actions)
        return jnp.sum((a - 1.0) * log_x + (b - 1.0) * log_rest - betaln(a, b), axis=-1) - log_range

    def entropy(outputs: chex.Array) -> chex.Array:
        a, b = split(outputs)
        means = (a - 1.0) * digamma(a) + (b - 1.0) * digamma(b) - (a + b - 2.0) * digamma(a + b)
        return jnp.sum(betaln(a, b) - means, axis=-1) + log_range

    def kl(outputs: chex.Array, others: chex.Array) -> chex.Array:
        (a, b), (other_a, other_b) = split(outputs), split(others)
        means = (a - other_a) * digamma(a) + (b - other_b) * digamma(b)
        means += (other_a + other_b - a - b) * digamma(a + b)
        return jnp.sum(betaln(other_a, other_b) - betaln(a, b) + means, axis=-1)

    to_env = _into(low, high, lambda u: 2.0 * jax.nn.sigmoid(u) - 1.0)
    return Distribution(2 * size, noise, sample, mode, log_prob, entropy, to_env, kl)


def _log_gamma_samples(shape: chex.Array, normal: chex.Array, log_uniform: chex.Array) -> chex.Array:
    """log of Gamma(shape) variables, shape >= 1: the first accepted proposal. [...], [..., K] -> [...].

    g = d v, v = (1 + n / sqrt(9 d))^3, d = shape - 1/3, accepted if log U < n^2 / 2 + d - d v + d log v.
    """
    d = shape[..., None] - 1.0 / 3.0
    root = 1.0 + normal * jax.lax.rsqrt(9.0 * d)
    log_v = 3.0 * jnp.log(jnp.where(root > 0, root, 1.0))
    accepted = (root > 0) & (log_uniform < 0.5 * jnp.square(normal) + d * (1.0 - jnp.exp(log_v) + log_v))
    # argmax finds the first; if there is none, v = 1, the mode.
    first = jax.nn.one_hot(jnp.argmax(accepted, axis=-1), accepted.shape[-1], dtype=bool) & accepted
    return jnp.log(d[..., 0]) + jnp.sum(jnp.where(first, log_v, 0.0), axis=-1)


def _finite_bounds(name: str, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError(f"{name} needs finite bounds, there are {low} and {high}")
    return low, high


def _into(low: np.ndarray, high: np.ndarray, squash: Callable) -> Callable:
    """u -> middle + half squash(u), squash into (-1, 1)."""
    half, middle = 0.5 * (high - low), 0.5 * (high + low)

    def to_env(actions: chex.Array) -> chex.Array:
        return jnp.broadcast_to(middle, actions.shape) + jnp.broadcast_to(half, actions.shape) * squash(actions)

    return to_env


def unit_gaussian(low: np.ndarray, high: np.ndarray) -> Distribution:
    """N(mean, I) in D coordinates without bounds: the noise of a denoising step. Outputs are means, D.

    Args:
      low: [D], for the shape; must be -inf.
      high: [D]; must be inf.

    Raises:
      ValueError: if a bound is finite.
    """
    if np.isfinite(low).any() or np.isfinite(high).any():
        raise ValueError(f"unit_gaussian has no bounds, there are {low} and {high}: use tanh_gaussian")
    size = np.asarray(low).size

    def log_prob(outputs: chex.Array, actions: chex.Array) -> chex.Array:
        chex.assert_equal_shape([outputs, actions])
        return -0.5 * jnp.sum(jnp.square(actions - outputs) + LOG_TWO_PI, axis=-1)

    def kl(outputs: chex.Array, others: chex.Array) -> chex.Array:
        return 0.5 * jnp.sum(jnp.square(outputs - others), axis=-1)

    return Distribution(
        num_outputs=size,
        noise=lambda key, shape: jax.random.normal(key, (*shape, size)),
        sample=lambda outputs, noise: outputs + noise,
        mode=lambda outputs: outputs,
        log_prob=log_prob,
        entropy=lambda outputs: jnp.full(outputs.shape[:-1], 0.5 * size * (1.0 + LOG_TWO_PI)),
        to_env=lambda actions: actions,
        kl=kl,
    )
