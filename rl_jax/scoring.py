"""Log-probs and entropies of given tokens, without ever holding logits for more than a few columns.

The head runs on slices of `chunk` columns and is recomputed in the backward pass, so the largest array is
[B, chunk, V] in both directions; the sum over slices is exactly what the whole head would give.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.rollout.sampling import Sampling, sampled_log_softmax, take_log_probs
from rl_jax.types import Model, Params, Scores, TokenBatch


def make_score(
    model: Model, *, completion_length: int, sampling: Sampling = Sampling(), chunk: int = 32
) -> Callable:
    """A pure function score(params, TokenBatch [B, T]) -> Scores [B, C] of the last C = completion_length columns.

    sampling: the distribution that is scored. Temperature alone is the policy that a loss differentiates; with top_k
    and top_p too it is the distribution that was sampled from, and -inf for a token that it cuts off.
    chunk: columns a slice; memory is B x chunk x V floats.
    The log-prob of column t comes from the hidden state of column t - 1. Raises ValueError where the rows are no
    longer than C, since the first completion token then has nothing before it.
    """
    sampling.check(model.vocab_size)

    def head(params, slice_):
        hidden, tokens = slice_
        log_probs = sampled_log_softmax(model.unembed(params, hidden), sampling)
        # 0 * -inf is nan: a token that was cut off adds nothing to the entropy.
        kept = jnp.isfinite(log_probs)
        safe = jnp.where(kept, log_probs, 0.0)
        entropy = -jnp.sum(jnp.where(kept, jnp.exp(safe) * safe, 0.0), axis=-1)
        return Scores(take_log_probs(log_probs, tokens), entropy)

    def score(params: Params, batch: TokenBatch) -> Scores:
        chex.assert_rank(batch.tokens, 2)
        rows, length = batch.tokens.shape
        if length <= completion_length:
            raise ValueError(f"rows of {length} tokens hold no prompt before {completion_length} completion tokens")
        hidden = model.apply(params, batch)[:, -completion_length - 1 : -1]
        tokens = batch.tokens[:, -completion_length:]
        chunks = -(-completion_length // chunk)
        padding = chunks * chunk - completion_length

        def split(x):  # [B, C, ...] -> [chunks, B, chunk, ...]: rows stay whole, so a sharded batch stays in place
            x = jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))
            return jnp.moveaxis(x.reshape(rows, chunks, chunk, *x.shape[2:]), 1, 0)

        def join(x):
            return jnp.moveaxis(x, 0, 1).reshape(rows, chunks * chunk)[:, :completion_length]

        scores = jax.lax.map(lambda s: jax.checkpoint(head)(params, s), (split(hidden), split(tokens)))
        return jax.tree.map(join, scores)

    return score
