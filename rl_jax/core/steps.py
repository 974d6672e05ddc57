"""Where the steps of an answer end.

Named in a config by its import path, algorithm.token_selection "rl_jax.core.steps:step_ends".
"""

from collections.abc import Sequence

import chex
import jax.numpy as jnp

from rl_jax.core.masked import last_of


def step_ends(mask: chex.Array, *, tokens: chex.Array, separators: Sequence[int] = ()) -> chex.Array:
    """The tokens that end a step: separators, and the last token of a row.

    Args:
      mask: bool [B, T].
      tokens: int [B, T], sampled.
      separators: ids; none: an answer is one step.

    Returns:
      bool [B, T].
    """
    chex.assert_equal_shape([mask, tokens])
    return (mask & jnp.isin(tokens, jnp.asarray(tuple(separators), tokens.dtype))) | last_of(mask)
