"""Per-token losses [B, T] -> Mean. Each mode is one function, and its count is what the paper divides by.

The Means of micro-batches and devices add up to the Mean of the whole batch, so the split never changes the loss.
With c the coefficient of a token's loss, n_i the tokens of row i, B' the rows that have any:
"""

import chex
import jax.numpy as jnp

from rl_jax.masked import Mean, masked_mean, masked_sum, row_means


def _rows(mask: chex.Array, dtype) -> chex.Array:
    return jnp.sum(jnp.any(mask, axis=1), dtype=dtype)


def token_mean(per_token: chex.Array, mask: chex.Array) -> Mean:
    """c = 1 / sum_i n_i: every token weighs the same (DAPO as verl and TRL ship it, arXiv 2503.14476).

    per_token: float [B, T]. mask: bool [B, T].
    """
    chex.assert_rank([per_token, mask], 2)
    return masked_mean(per_token, mask)


def seq_mean_token_mean(per_token: chex.Array, mask: chex.Array) -> Mean:
    """c = 1 / (n_i B'): every completion weighs the same (GRPO, arXiv 2402.03300). float [B, T], bool [B, T]."""
    chex.assert_rank([per_token, mask], 2)
    return Mean(jnp.sum(row_means(per_token, mask)), _rows(mask, per_token.dtype))


def seq_mean_token_sum(per_token: chex.Array, mask: chex.Array) -> Mean:
    """c = 1 / B': the sequence log-prob's own gradient (REINFORCE, RLOO). float [B, T], bool [B, T]."""
    chex.assert_rank([per_token, mask], 2)
    return Mean(masked_sum(per_token, mask), _rows(mask, per_token.dtype))


def seq_mean_token_sum_norm(per_token: chex.Array, mask: chex.Array, *, max_length: int) -> Mean:
    """c = 1 / (B' L): Dr. GRPO, L the generation limit and never the padded width (arXiv 2503.20783).

    per_token: float [B, T]. mask: bool [B, T]. max_length: L, in tokens.
    """
    chex.assert_rank([per_token, mask], 2)
    return Mean(masked_sum(per_token, mask) / max_length, _rows(mask, per_token.dtype))
