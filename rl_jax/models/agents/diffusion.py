"""A policy that denoises its action: a diffusion model of actions given the observation, trained by cloning.

    1 - beta_t = exp(-.1 / T - 9.9 (2 t - 1) / (2 T^2)), t = 1..T            the schedule "vp"
    cloning:   |eps_theta(s, sqrt(abar_t) a + sqrt(1 - abar_t) e, t) - e|^2,  e ~ N(0, 1), t uniform
    sampling:  x <- (x - beta_t / sqrt(1 - abar_t) eps_theta) / sqrt(1 - beta_t) + sqrt(beta_t) z, clipped to [-1, 1]

No noise is added in the last step. As the code of IDQL and EXPO (arXiv 2507.07986), whose network is a residual one
with learned Fourier features of the time; here an MLP reads the time as one of T.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.core.types import Params
from rl_jax.models.agents.torso import linear
from rl_jax.models.agents.value_networks import make_layers, uniform_dense


class Diffusion(NamedTuple):
    """A diffusion model of actions in [-1, 1]^D.

    Attributes:
      init: (key) -> params.
      loss: (params, observations [N, ...], actions [N, D] in [-1, 1], key) -> float [N], the cloning loss.
      sample: (params, observations [N, ...], noise [T, N, D]) -> actions [N, D] in [-1, 1].
      steps: T.
      size: D.
      to_unit: actions in the environment's units -> in [-1, 1].
      to_env: actions in [-1, 1] -> in the environment's units.
    """

    init: Callable
    loss: Callable
    sample: Callable
    steps: int
    size: int
    to_unit: Callable
    to_env: Callable


def vp_schedule(steps: int) -> np.ndarray:
    """beta_1..beta_T of the schedule "vp", float64 [T]: T = 10 leaves .6 % of the action's variance at the end."""
    t = np.arange(1, steps + 1)
    return 1.0 - np.exp(-0.1 / steps - 0.5 * (10.0 - 0.1) * (2 * t - 1) / steps**2)


def make_diffusion(
    observation_shape: tuple[int, ...], low: np.ndarray, high: np.ndarray, *, steps: int = 10, **layers: Any
) -> Diffusion:
    """A Diffusion of an MLP.

    Args:
      observation_shape: (D,), or images, which are flattened.
      low: of the actions, finite, [D].
      high: of the actions, finite, [D].
      steps: T, 2 or more.
      **layers: hidden, activation, layer_norm, as in models.agents.value_networks.

    Raises:
      ValueError: if steps is below 2.
    """
    if steps < 2:
        raise ValueError(f"algorithm.method.steps={steps} of denoising: it must be 2 or more")
    size, seen = len(low), int(np.prod(observation_shape))
    half, middle = 0.5 * (high - low), 0.5 * (high + low)
    betas = vp_schedule(steps)
    left = np.cumprod(1.0 - betas)  # abar
    _, torso = make_layers((seen + size + steps,), layers | dict(channels=0))

    def init(key: chex.PRNGKey) -> Params:
        params, head_key = torso.init(key)
        return params | {"head": uniform_dense(head_key, torso.size, size)}

    def noise_of(params: Params, observations: chex.Array, x: chex.Array, time: chex.Array) -> chex.Array:
        rows = [observations.reshape(len(x), -1), x, jax.nn.one_hot(time, steps)]
        return linear(torso.apply(params, jnp.concatenate(rows, axis=1)), params["head"])

    def loss(params: Params, observations: chex.Array, actions: chex.Array, key: chex.PRNGKey) -> chex.Array:
        time_key, noise_key = jax.random.split(key)
        time = jax.random.randint(time_key, (len(actions),), 0, steps)
        noise = jax.random.normal(noise_key, actions.shape)
        kept = jnp.asarray(left, jnp.float32)[time][:, None]
        noisy = jnp.sqrt(kept) * actions + jnp.sqrt(1.0 - kept) * noise
        return jnp.sum(jnp.square(noise_of(params, observations, noisy, time) - noise), axis=-1)

    def sample(params: Params, observations: chex.Array, noise: chex.Array) -> chex.Array:
        chex.assert_shape(noise, (steps, len(observations), size))

        def step(x: chex.Array, now):
            time, beta, kept, added = now
            eps = noise_of(params, observations, x, jnp.broadcast_to(time, (len(x),)))
            x = (x - beta / jnp.sqrt(1.0 - kept) * eps) / jnp.sqrt(1.0 - beta) + jnp.sqrt(beta) * added
            return jnp.clip(x, -1.0, 1.0), None

        numbers = jnp.asarray(betas[::-1], jnp.float32), jnp.asarray(left[::-1], jnp.float32)
        added = jnp.concatenate([noise[1:], jnp.zeros((1, *noise.shape[1:]))])
        return jax.lax.scan(step, noise[0], (jnp.arange(steps)[::-1], *numbers, added))[0]

    def to_unit(actions: chex.Array) -> chex.Array:
        return (actions - jnp.broadcast_to(middle, actions.shape)) / jnp.broadcast_to(half, actions.shape)

    def to_env(actions: chex.Array) -> chex.Array:
        return jnp.broadcast_to(middle, actions.shape) + jnp.broadcast_to(half, actions.shape) * actions

    return Diffusion(init, loss, sample, steps, size, to_unit, to_env)
