"""KL(pi || pi_old) over the whole vocabulary, with logits for only a few columns at a time."""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.packed_rows import hidden_at
from rl_jax.core.types import Model, Params, TokenBatch


def make_full_kl(model: Model, *, completion_length: int, chunk: int = 32, temperature: float = 1.0) -> Callable:
    """Builds kl(params, old_params, TokenBatch [B, T]) -> float [B, C], differentiable in params alone.

        KL_t = sum_v pi(v | s_t) (log pi(v | s_t) - log pi_old(v | s_t))

    Args:
      model: network as pure functions.
      completion_length: C.
      chunk: maximum columns per slice. Memory is 2 x B x chunk x V floats, recomputed in the backward pass.
      temperature: of both distributions.
    """

    @jax.checkpoint
    def head(params: Params, old_params: Params, parts: tuple) -> chex.Array:
        hidden, old_hidden = parts
        log_pi = jax.nn.log_softmax(model.unembed(params, hidden) / temperature, axis=-1)
        log_old = jax.nn.log_softmax(model.unembed(old_params, old_hidden) / temperature, axis=-1)
        return jnp.sum(jnp.exp(log_pi) * (log_pi - jax.lax.stop_gradient(log_old)), axis=-1)

    def kl(params: Params, old_params: Params, batch: TokenBatch) -> chex.Array:
        rows, old_params = batch.tokens.shape[0], jax.lax.stop_gradient(old_params)
        columns = slice(-completion_length - 1, -1)
        slices = -(-completion_length // chunk)
        width = -(-completion_length // slices)

        def split(x):  # [B, C, D] -> [slices, B, c, D]
            x = jnp.pad(x, [(0, 0), (0, slices * width - completion_length), (0, 0)])
            return jnp.moveaxis(x.reshape(rows, slices, width, -1), 1, 0)

        parts = tuple(split(hidden_at(model.apply, p, batch, lambda x: x[:, columns])) for p in (params, old_params))
        found = jax.lax.map(lambda x: head(params, old_params, x), parts)
        return jnp.moveaxis(found, 0, 1).reshape(rows, -1)[:, :completion_length]

    return kl
