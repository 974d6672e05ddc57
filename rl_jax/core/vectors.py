"""Vectors of about length 1."""

import chex
import jax
import jax.numpy as jnp


def unit(x: chex.Array, eps: float) -> chex.Array:
    """x / sqrt(|x|^2 + eps) over the last axis; at 0 it is 0, and its gradient finite, which that of the norm is not.

    Args:
      x: float [..., D].
      eps: above 0; the gradient at 0 is eps^(-1/2).
    """
    return x * jax.lax.rsqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + eps)
