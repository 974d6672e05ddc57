"""Shaping a laser pulse in time by the phase of its spectrum: a stand-in for the laser of TempoRL (arXiv 2304.12187).

    E(w) = exp(-w^2 / 2 + i sum_k c_k w^k / k!),  k = 2, 3, 4;   I(t) = |FFT E|^2;   reward = max_t I / max_t I at c = 0

The coefficients c (dispersion of second to fourth order) start at random and are moved by actions. The shortest pulse,
c = 0, is worth 1 per step; each coefficient away from 0 lengthens the pulse. The paper's laser model and its images of
pulses are not public: the physics here is that of a Gaussian spectrum, and the agent sees the coefficients.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Environment, Step, time_limit

POINTS = 64
FREQUENCIES = np.linspace(-4.0, 4.0, POINTS, dtype=np.float32)
ORDERS = np.stack([FREQUENCIES**2 / 2, FREQUENCIES**3 / 6, FREQUENCIES**4 / 24]).astype(np.float32)
RANGE = np.float32([4.0, 4.0, 4.0])  # of the coefficients at the start
NO = np.bool_(False)


def peak(coefficients: chex.Array) -> chex.Array:
    """The largest intensity of the pulse over that of the shortest one: float [3] -> float [], at most 1."""
    phase = jnp.sum(ORDERS * coefficients[:, None], axis=0)
    amplitude = jnp.asarray(np.exp(-0.5 * FREQUENCIES**2))
    real, imaginary = amplitude * jnp.cos(phase), amplitude * jnp.sin(phase)
    # A matmul with cosines and sines: the same as a Fourier transform, on 64 points.
    times = np.linspace(-6.0, 6.0, POINTS + 1)  # 0 is one of them
    angle = np.outer(times, FREQUENCIES)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    intensity = jnp.square(cos @ real - sin @ imaginary) + jnp.square(sin @ real + cos @ imaginary)
    return jnp.max(intensity) / float(np.sum(np.exp(-0.5 * FREQUENCIES.astype(np.float64) ** 2)) ** 2)


def environment(*, step_size: float = 0.8, periods: int = 20) -> Environment:
    """The pulse as an Environment: actions in [-1, 1]^3 move the coefficients by up to step_size.

    Args:
      step_size: of an action of 1.
      periods: steps after which an episode is truncated.
    """

    def observe(coefficients: chex.Array) -> chex.Array:
        return coefficients / RANGE

    def reset(key: chex.PRNGKey):
        coefficients = jax.random.uniform(key, (3,), minval=-1.0, maxval=1.0) * RANGE
        return coefficients, observe(coefficients)

    def step(key: chex.PRNGKey, coefficients: chex.Array, action: chex.Array):
        coefficients = jnp.clip(coefficients + step_size * action, -2 * RANGE, 2 * RANGE)
        return coefficients, Step(observe(coefficients), peak(coefficients), NO, NO)

    unit = np.ones(3, np.float32)
    return time_limit(Environment(reset, step, Box(-2 * unit, 2 * unit), Box(-unit, unit)), periods)
