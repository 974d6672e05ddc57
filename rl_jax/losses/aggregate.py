"""Per-token losses [B, T] -> Mean. Each mode is one function, and its count is what the paper divides by.

The Means of micro-batches and devices add up to the Mean of the whole batch, so the split never changes the loss.
With c the coefficient of a token's loss, n_i the tokens of row i, B' the rows that have any. Where c needs a number of
the whole batch that a micro-batch cannot see, that number comes in as an array [B] and is split with the rows.
"""

import chex
import jax.numpy as jnp

from rl_jax.core.masked import Mean, masked_mean, masked_sum, row_means, zero_masked


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


def group_token_mean(per_token: chex.Array, mask: chex.Array, *, group_tokens: chex.Array) -> Mean:
    """c = 1 / (N_g P'): a token mean in each prompt's group, and the mean of these over the P' prompts with any token.

    The DAPO paper's text; `token_mean` is what its code and most others do. They differ where groups differ in length.
    per_token: float [B, T]. mask: bool [B, T].
    group_tokens: float [B]. N_g = sum of n_i over row i's whole group, the same on each row of it. Its rows may go to
    different micro-batches: each counts n_i / N_g of a prompt, so the counts of a whole group add up to 1.
    Source: arXiv 2503.14476 eq. 8; SkyRL's prompt_mean.
    """
    chex.assert_rank([per_token, mask], 2)
    chex.assert_shape(group_tokens, mask.shape[:1])
    share = mask / jnp.maximum(group_tokens, 1.0)[:, None]
    return Mean(jnp.sum(share * zero_masked(per_token, mask)), jnp.sum(share, dtype=per_token.dtype))


def _one(mask: chex.Array, batch_rows: chex.Array, dtype) -> chex.Array:
    """This part's share of the rows of an update; the shares of all its parts add up to 1, which divides by nothing."""
    chex.assert_shape(batch_rows, mask.shape[:1])
    return jnp.sum(jnp.any(mask, axis=1) / jnp.maximum(batch_rows, 1.0), dtype=dtype)


def token_sum(per_token: chex.Array, mask: chex.Array, *, batch_rows: chex.Array) -> Mean:
    """c = 1: the sum over all tokens of an update (verl's token-sum); its size grows with the batch.

    per_token: float [B, T]. mask: bool [B, T].
    batch_rows: float [B]. B' of all rows of one update, the same number on each; a part's count is its share of them.
    """
    chex.assert_rank([per_token, mask], 2)
    return Mean(masked_sum(per_token, mask), _one(mask, batch_rows, per_token.dtype))


def only_token_mean(per_token: chex.Array, mask: chex.Array, *, batch_rows: chex.Array) -> Mean:
    """c = 1 / n_i: the sum over completions of their token means, `seq_mean_token_mean` times B' (DCPO's OTM).

    per_token, mask, batch_rows: as in `token_sum`. Source: arXiv 2509.02333; its code takes the token mean of each
    micro-batch instead, which is this up to a constant only where a micro-batch is one row.
    """
    chex.assert_rank([per_token, mask], 2)
    return Mean(jnp.sum(row_means(per_token, mask)), _one(mask, batch_rows, per_token.dtype))
