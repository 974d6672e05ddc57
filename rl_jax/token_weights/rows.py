"""Weights of whole rows, on their tokens: float [B, T], 0 outside the mask.

Named in a config by their import path, algorithm.token_weight "rl_jax.token_weights.rows:by_difficulty".
"""

import chex
import jax.numpy as jnp


def by_difficulty(mask: chex.Array, *, difficulty: chex.Array) -> chex.Array:
    """Each row counts as much as its prompt is hard. Source: GUI-G1 arXiv 2505.15810 (loss times `rate`, per row).

    Args:
      mask: bool [B, T].
      difficulty: float [B].
    """
    chex.assert_equal_shape_prefix([mask, difficulty], 1)
    return jnp.where(mask, difficulty[:, None], 0.0)
