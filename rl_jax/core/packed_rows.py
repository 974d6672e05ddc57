"""Packed rows in a forward pass: what the model reads, and results by their place in it."""

import inspect
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from rl_jax.core.axis_table import AXES
from rl_jax.core.types import Packed, Params, TokenBatch


def rows_of(batch: TokenBatch | Packed) -> TokenBatch:
    """The rows as a model reads them, [B, T]; packed ones part after part, [S * R, T]."""
    if isinstance(batch, Packed):
        return jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), batch.rows)
    return batch


def hidden_at(apply: Callable, params: Params, batch: TokenBatch, places: Callable) -> chex.Array:
    """places(apply(params, batch)), by a forward that may leave out what only other places need of the last layer.

    Args:
      apply: (params, TokenBatch [B, T]) -> hidden [B, T, D]. If it has a parameter `places`, it picks them itself.
      params: of the model.
      batch: the rows.
      places: [B, T, n] -> [S, N, n], a slice or a gather of places for any n, with no other arithmetic.
    """
    chex.assert_rank(batch.tokens, 2)
    if "places" in inspect.signature(apply).parameters:
        return apply(params, batch, places=places)
    return places(apply(params, batch))


def hidden_of_one(apply: Callable, params: Params) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the hidden states of one row with one token, [1, 1, D].

    Nothing runs, and no mesh is looked at: over a `context` of several devices one token could not be split.

    Args:
      apply: a model's, with or without a mesh.
      params: arrays or shapes.
    """
    one = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), x.dtype), params)
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,) * len(AXES), AXES)):
        return jax.eval_shape(apply, shapes, TokenBatch(one, one, one))


def hidden_of_parts(apply: Callable, params: Params, batch: Packed, indices: chex.Array) -> chex.Array:
    """The hidden states of packed rows at `indices`, float [S, n, D].

    Args:
      apply: (params, TokenBatch [S * R, T]) -> hidden [S * R, T, D], as in hidden_at.
      params: of the model.
      batch: the packed rows.
      indices: int32 [S, n], into each part's [R * T].
    """
    chex.assert_rank([batch.rows.tokens, batch.sources, batch.columns, indices], [3, 2, 3, 2])
    parts, rows, length = batch.rows.tokens.shape

    def places(x):
        return pick(x.reshape(parts, rows * length, -1), indices)

    if indices.shape[1] >= rows * length:  # there is nothing to leave out
        return places(apply(params, rows_of(batch)))
    return hidden_at(apply, params, rows_of(batch), places)


def pick(x: chex.Array, indices: chex.Array) -> chex.Array:
    """x [S, M, ...], indices int32 [S, n] -> [S, n, ...].

    Indices stay within their part: a batched gather, so each device keeps its own rows. They must be in range.
    """
    return jax.vmap(lambda part, places: part.at[places].get(mode="promise_in_bounds"))(x, indices)
