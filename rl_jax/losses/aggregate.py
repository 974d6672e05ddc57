"""Per-token losses [B, T] -> Mean. Each mode is one function, and its count is what the paper divides by.

The Means of micro-batches and devices add up to the Mean of the whole batch, so splitting a batch never changes the
loss. Below, c is the coefficient of a token's loss, n_i the number of tokens of row i, and B' the number of rows with
any token. If c needs a number of the whole batch that a micro-batch cannot see, it is passed as an array [B] and split
with the rows.

Frameworks differ in whether a row without a token (cut off, with `mask_truncated`) counts as a completion. Here and in
verl it does not. With `count_empty_rows` B' is the number of all rows, as in TRL's grpo, dr_grpo, sapo, luspo, gmpo and
rloo: the loss is then smaller the more rows are empty.
"""

import chex
import jax.numpy as jnp

from rl_jax.core.masked import Mean, masked_mean, row_means, sum_dtype, zero_masked


def _total(x: chex.Array) -> chex.Array:
    return jnp.sum(x, dtype=sum_dtype(x))


def _rows(per_token: chex.Array, mask: chex.Array, count_empty_rows: bool) -> chex.Array:
    return jnp.sum(jnp.any(mask, axis=1) | count_empty_rows, dtype=sum_dtype(per_token))


def token_mean(per_token: chex.Array, mask: chex.Array) -> Mean:
    """Every token weighs the same: c = 1 / sum_i n_i (DAPO as verl and TRL ship it, arXiv 2503.14476).

    Args:
      per_token: float [B, T].
      mask: bool [B, T].
    """
    chex.assert_rank([per_token, mask], 2)
    return masked_mean(per_token, mask)


def seq_mean_token_mean(per_token: chex.Array, mask: chex.Array, *, count_empty_rows: bool = False) -> Mean:
    """Every completion weighs the same: c = 1 / (n_i B') (GRPO, arXiv 2402.03300).

    Args:
      per_token: float [B, T].
      mask: bool [B, T].
      count_empty_rows: whether B' counts rows without a token.
    """
    chex.assert_rank([per_token, mask], 2)
    return Mean(_total(row_means(per_token, mask)), _rows(per_token, mask, count_empty_rows))


def seq_mean_token_sum(per_token: chex.Array, mask: chex.Array, *, count_empty_rows: bool = False) -> Mean:
    """The gradient of the sequence log-prob: c = 1 / B' (REINFORCE, RLOO).

    Args:
      per_token: float [B, T].
      mask: bool [B, T].
      count_empty_rows: whether B' counts rows without a token.
    """
    chex.assert_rank([per_token, mask], 2)
    return Mean(_total(zero_masked(per_token, mask)), _rows(per_token, mask, count_empty_rows))


def seq_mean_token_sum_norm(
    per_token: chex.Array, mask: chex.Array, *, max_length: int, count_empty_rows: bool = False
) -> Mean:
    """Dr. GRPO: c = 1 / (B' L), L the generation limit and never the padded width (arXiv 2503.20783).

    Args:
      per_token: float [B, T].
      mask: bool [B, T].
      max_length: L, in tokens.
      count_empty_rows: whether B' counts rows without a token.
    """
    chex.assert_rank([per_token, mask], 2)
    return Mean(_total(zero_masked(per_token, mask)) / max_length, _rows(per_token, mask, count_empty_rows))


def group_token_mean(per_token: chex.Array, mask: chex.Array, *, group_tokens: chex.Array) -> Mean:
    """Token mean per prompt group, then the mean over the P' prompts with any token: c = 1 / (N_g P').

    The DAPO paper's text; its code and most others use `token_mean`. The two differ if groups differ in length.
    Source: arXiv 2503.14476 eq. 8; SkyRL's prompt_mean.

    Args:
      per_token: float [B, T].
      mask: bool [B, T].
      group_tokens: float [B]. N_g, the sum of n_i over row i's whole group; the same on each row of the group. Rows of
        a group may go to different micro-batches: each counts n_i / N_g of a prompt, so the counts of a whole group add
        up to 1.
    """
    chex.assert_rank([per_token, mask], 2)
    chex.assert_shape(group_tokens, mask.shape[:1])
    share = mask / jnp.maximum(group_tokens, 1.0)[:, None]
    return Mean(_total(share * zero_masked(per_token, mask)), jnp.sum(share, dtype=sum_dtype(per_token)))


def _one(per_token: chex.Array, mask: chex.Array, batch_rows: chex.Array) -> chex.Array:
    """This part's share of the rows of an update. The shares of all parts add up to 1: the final division is by 1."""
    chex.assert_shape(batch_rows, mask.shape[:1])
    return jnp.sum(jnp.any(mask, axis=1) / jnp.maximum(batch_rows, 1.0), dtype=sum_dtype(per_token))


def token_sum(per_token: chex.Array, mask: chex.Array, *, batch_rows: chex.Array) -> Mean:
    """Sum over all tokens of an update: c = 1 (verl's token-sum). Its size grows with the batch.

    Args:
      per_token: float [B, T].
      mask: bool [B, T].
      batch_rows: float [B]. B' over all rows of one update, the same number on each row. The count of a part is its
        share of these rows.
    """
    chex.assert_rank([per_token, mask], 2)
    return Mean(_total(zero_masked(per_token, mask)), _one(per_token, mask, batch_rows))


def only_token_mean(per_token: chex.Array, mask: chex.Array, *, batch_rows: chex.Array) -> Mean:
    """Sum over completions of their token means: c = 1 / n_i, `seq_mean_token_mean` times B' (DCPO's OTM).

    Source: arXiv 2509.02333. Its code takes the token mean of each micro-batch instead, which equals this up to a
    constant only if a micro-batch is one row; its newest README, and its code before 2025-12-20, the sum over all
    tokens (`token_sum`).

    Args:
      per_token: float [B, T].
      mask: bool [B, T].
      batch_rows: float [B], as in `token_sum`.
    """
    chex.assert_rank([per_token, mask], 2)
    return Mean(_total(row_means(per_token, mask)), _one(per_token, mask, batch_rows))
