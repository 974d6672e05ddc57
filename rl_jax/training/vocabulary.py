"""Log-probs with terms that need the whole vocabulary at each position: the KL to a reference, sum_v pi(v)^2.

As in rl_jax.training.scoring the head runs on slices of columns and is recomputed in the backward pass, so [B, C, V]
never exists.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import masked_sum, zero_masked
from rl_jax.core.packed_rows import hidden_at
from rl_jax.core.types import Model, Params, TokenBatch, TokenScores
from rl_jax.rollout.lm.sampling import take_log_probs


class VocabularyScores(NamedTuple):
    """Per-token results on the last C columns, float32 [B, C].

    Attributes:
      log_probs: as in types.TokenScores.
      entropy: as in types.TokenScores.
      log_sum_squares: log sum_v pi(v | s_t)^2.
      ref_log_probs: log-probs of the tokens under the reference, without gradient. None without a reference.
      kl: KL(ref(. | s_t) || pi(. | s_t)), with the gradient of pi. None without a reference.
    """

    log_probs: chex.Array
    entropy: chex.Array
    log_sum_squares: chex.Array
    ref_log_probs: chex.Array | None = None
    kl: chex.Array | None = None

    def scores(self) -> TokenScores:
        """The part that rl_jax.dpo.loss takes."""
        return TokenScores(self.log_probs, self.entropy)


def make_vocabulary_score(model: Model, *, completion_length: int, chunk: int = 32) -> Callable:
    """Builds a pure function that scores the last C columns; the reference gets no gradient.

    Args:
      model: network as pure functions.
      completion_length: C.
      chunk: maximum columns per slice. Memory is B x chunk x V floats, twice that with a reference, in both directions.

    Returns:
      score(params, ref_params or None, TokenBatch [B, T]) -> VocabularyScores.

    Raises:
      ValueError: when traced, if the rows are not longer than C: the first completion token would have nothing before
        it.
    """

    def head(params: Params, ref_params: Params | None, hidden, ref_hidden, tokens) -> VocabularyScores:
        log_pi = jax.nn.log_softmax(model.unembed(params, hidden), axis=-1)
        result = VocabularyScores(
            take_log_probs(log_pi, tokens),
            -jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1),
            jax.nn.logsumexp(2.0 * log_pi, axis=-1),
        )
        if ref_params is None:
            return result
        log_ref = jax.lax.stop_gradient(jax.nn.log_softmax(model.unembed(ref_params, ref_hidden), axis=-1))
        kl = jnp.sum(jnp.exp(log_ref) * (log_ref - log_pi), axis=-1)
        return result._replace(ref_log_probs=take_log_probs(log_ref, tokens), kl=kl)

    def score(params: Params, ref_params: Params | None, batch: TokenBatch) -> VocabularyScores:
        chex.assert_rank(batch.tokens, 2)
        rows, length = batch.tokens.shape
        if length <= completion_length:
            raise ValueError(
                f"rows of {length} tokens leave no room for a prompt before {completion_length} completion tokens"
            )
        ref_params = jax.lax.stop_gradient(ref_params)

        def hidden_of(params):
            return hidden_at(model.apply, params, batch, lambda x: x[:, -completion_length - 1 : -1])

        hidden = hidden_of(params)
        ref_hidden = None if ref_params is None else jax.lax.stop_gradient(hidden_of(ref_params))
        slices = -(-completion_length // chunk)
        width = -(-completion_length // slices)

        def split(x):  # [B, C, ...] -> [slices, B, c, ...]
            x = jnp.pad(x, [(0, 0), (0, slices * width - completion_length)] + [(0, 0)] * (x.ndim - 2))
            return jnp.moveaxis(x.reshape(rows, slices, width, *x.shape[2:]), 1, 0)

        @jax.checkpoint
        def one(params, ref_params, parts):
            return head(params, ref_params, *parts)

        parts = jax.tree.map(split, (hidden, ref_hidden, batch.tokens[:, -completion_length:]))
        result = jax.lax.map(lambda parts: one(params, ref_params, parts), parts)
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(rows, -1)[:, :completion_length], result)

    return score


def sequence_kl(kl: chex.Array, mask: chex.Array) -> chex.Array:
    """SeqKL(y) = sum_t KL(ref(. | s_t) || pi(. | s_t)), which scores.token_level needs (TDPO, arXiv 2404.11999).

    Args:
      kl: float [N * K, C]. As scored, prompt by prompt.
      mask: bool [N, K, C].

    Returns:
      float [N, K], differentiable.
    """
    return masked_sum(kl.reshape(mask.shape), mask, axis=-1)


def response_weights(log_probs: chex.Array, log_sum_squares: chex.Array, mask: chex.Array) -> chex.Array:
    """w(y) = exp(mean_t (logp_t - log sum_v pi(v | s_t)^2)), which weights.policy_likelihood needs (WPO).

    Source: arXiv 2406.11827, eq. 2.

    Args:
      log_probs: float [N * K, C]. As scored, prompt by prompt.
      log_sum_squares: float [N * K, C].
      mask: bool [N, K, C].

    Returns:
      float [N, K], without gradient; 1 for a response without tokens.
    """
    aligned = zero_masked((log_probs - log_sum_squares).reshape(mask.shape), mask)
    lengths = jnp.maximum(jnp.sum(mask, axis=-1), 1)
    return jax.lax.stop_gradient(jnp.exp(jnp.sum(aligned, axis=-1) / lengths))
