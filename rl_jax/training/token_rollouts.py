"""Scores of one-token rollouts (rl_jax.losses.one_token), with logits for only a few columns at a time."""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.packed_rows import hidden_at
from rl_jax.core.types import Model, Params, TokenBatch
from rl_jax.losses.one_token import OneToken


def make_token_rollouts(model: Model, fn: Callable, *, completion_length: int, chunk: int = 32) -> Callable:
    """Builds score(params, TokenBatch [B, T], seeds uint32 [B]) -> (OneToken, entropy), float [B, C] each.

    What is drawn at a column depends on the row's seed and the column alone, not on chunks or other rows.

    Args:
      model: network as pure functions.
      fn: (log_probs, tokens, keys) -> OneToken, with its keywords bound.
      completion_length: C.
      chunk: maximum columns per slice. Memory is B x chunk x V floats, recomputed in the backward pass.
    """

    @jax.checkpoint
    def head(params: Params, parts: tuple) -> tuple[OneToken, chex.Array]:
        hidden, tokens, seeds, columns = parts
        log_probs = jax.nn.log_softmax(model.unembed(params, hidden), axis=-1)
        keys = jax.vmap(jax.vmap(lambda seed, column: jax.random.fold_in(jax.random.key(seed), column)))(seeds, columns)
        entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
        return fn(log_probs, tokens, keys), entropy

    def score(params: Params, batch: TokenBatch, seeds: chex.Array) -> tuple[OneToken, chex.Array]:
        rows = batch.tokens.shape[0]
        hidden = hidden_at(model.apply, params, batch, lambda x: x[:, -completion_length - 1 : -1])
        slices = -(-completion_length // chunk)
        width = -(-completion_length // slices)

        def split(x):  # [B, C, ...] -> [slices, B, c, ...]
            x = jnp.pad(x, [(0, 0), (0, slices * width - completion_length)] + [(0, 0)] * (x.ndim - 2))
            return jnp.moveaxis(x.reshape(rows, slices, width, *x.shape[2:]), 1, 0)

        shape = (rows, completion_length)
        columns = jnp.broadcast_to(jnp.arange(completion_length, dtype=jnp.uint32), shape)
        seeds = jnp.broadcast_to(seeds[:, None], shape)
        parts = jax.tree.map(split, (hidden, batch.tokens[:, -completion_length:], seeds, columns))
        found = jax.lax.map(lambda x: head(params, x), parts)
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(rows, -1)[:, :completion_length], found)

    return score
