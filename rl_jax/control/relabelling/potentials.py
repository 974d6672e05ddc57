"""Potentials for `by_potential`: (observations float32 [..., D], keywords) -> float32 [...]."""

import chex
import jax.numpy as jnp


def linear(observations: chex.Array, *, weights: tuple[float, ...]) -> chex.Array:
    """sum_i w_i o[i] over the first len(weights) features."""
    return observations[..., : len(weights)] @ jnp.asarray(weights)


def place(observations: chex.Array, *, scale: float = 1.0) -> chex.Array:
    """scale times which entry of a one-hot observation is on, over their number less 1: progress in [0, 1]."""
    return scale * jnp.argmax(observations, axis=-1).astype(jnp.float32) / (observations.shape[-1] - 1)


def table(observations: chex.Array, *, values: tuple[float, ...]) -> chex.Array:
    """values[s] of one-hot observations."""
    return jnp.asarray(values)[jnp.argmax(observations, axis=-1)]


def closeness(
    observations: chex.Array, *, indices: tuple[int, ...], target: tuple[float, ...], width: float = 1.0
) -> chex.Array:
    """exp(-|o[indices] - target|^2 / (2 width^2))."""
    seen = observations[..., jnp.asarray(indices)]
    gap = seen - jnp.broadcast_to(jnp.asarray(target, jnp.float32), seen.shape)
    return jnp.exp(-0.5 * jnp.sum(jnp.square(gap), axis=-1) / width**2)
