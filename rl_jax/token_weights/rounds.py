"""Weights of whole rounds of episodes, on their tokens. Named in a config by their import path."""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked


def whole_rounds(mask: chex.Array, *, turns: chex.Array, key: chex.PRNGKey, multiple: int = 1) -> chex.Array:
    """IterResearch's adaptive down-sampling: every kept round counts the same, and their number divides by `multiple`.

        w = N / (K n_ij) on the n_ij tokens of a kept round, 0 on the others;   K = floor(C / multiple) multiple

    of C rounds, drawn evenly; N tokens are in the mask. So with `token_mean` the loss is the mean over the K kept
    rounds of their means over tokens. With less than `multiple` rounds all are kept, where the paper would have none.
    The paper needs this to split rounds over devices; rows have equal shapes here, and only the objective is left.
    Source: arXiv 2511.07327 eq. 4 and 5.

    Args:
      mask: bool [B, T].
      turns: int32 [B, T], number of the turn on its tokens, -1 elsewhere.
      key: draws the rounds.
      multiple: the paper's data-parallel size.

    Returns:
      float [B, T].

    Raises:
      ValueError: if multiple is below 1.
    """
    if multiple < 1:
        raise ValueError(f"multiple={multiple} must be at least 1")
    chex.assert_equal_shape([mask, turns])
    rows, width = mask.shape
    played = mask & (turns >= 0)
    own = jnp.arange(rows)[:, None] * width + jnp.minimum(turns, width - 1)  # a number for each round
    sizes = jax.ops.segment_sum(played.astype(jnp.float32).ravel(), own.ravel(), rows * width)
    real = sizes > 0
    number = jnp.sum(real)
    kept = jnp.where(number >= multiple, number // multiple * multiple, number)
    draws = jnp.where(real, jax.random.uniform(key, sizes.shape), jnp.inf)
    chosen = jnp.argsort(jnp.argsort(draws)) < kept  # there are as many real ones
    weights = jnp.where(chosen, jnp.sum(mask) / jnp.maximum(kept * sizes, 1.0), 0.0)
    return zero_masked(weights[own], played)
