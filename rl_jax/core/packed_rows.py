"""Packed rows in a forward pass: what the model reads, and results by their place in it."""

from collections.abc import Callable

import chex
import jax

from rl_jax.core.types import Packed, Params, TokenBatch


def rows_of(batch: TokenBatch | Packed) -> TokenBatch:
    """The rows as a model reads them, [B, T]; packed ones part after part, [S * R, T]."""
    if isinstance(batch, Packed):
        return jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), batch.rows)
    return batch


def hidden_of_parts(apply: Callable, params: Params, batch: Packed) -> chex.Array:
    """The hidden states of packed rows, float [S, R * T, D].

    Args:
      apply: (params, TokenBatch [S * R, T]) -> hidden [S * R, T, D].
      params: of the model.
      batch: the packed rows.
    """
    chex.assert_rank([batch.rows.tokens, batch.sources, batch.columns], [3, 2, 3])
    hidden = apply(params, rows_of(batch))
    return hidden.reshape(len(batch.places), -1, hidden.shape[-1])


def pick(x: chex.Array, indices: chex.Array) -> chex.Array:
    """x [S, M, ...], indices int32 [S, n] -> [S, n, ...].

    Indices stay within their part: a batched gather, so each device keeps its own rows. They must be in range.
    """
    return jax.vmap(lambda part, places: part.at[places].get(mode="promise_in_bounds"))(x, indices)
