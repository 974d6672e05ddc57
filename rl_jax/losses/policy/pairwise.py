"""P3O: surrogates of pairs of completions of one prompt, whose ratios are clipped each by itself or jointly.

Named in a config by their import path, "rl_jax.losses.policy.pairwise:separate". The rows of a group must be neighbours
in the batch that a loss sees: one minibatch, one micro-batch, padded rows. The loss of a row is on each of its tokens,
so that seq_mean_token_mean is the mean over pairs.
"""

import math

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import masked_sum, zero_masked
from rl_jax.losses.policy.base import Surrogate, assert_tokens, log_ratio, row_mean
from rl_jax.losses.policy.clipped import finite_exp


def separate(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    group_size: int,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    max_weight: float = 10.0,
) -> Surrogate:
    """P3O-V1: each ratio of a pair is clipped by itself and weighted by the other one.

        l_i = mean over j != i of max(-q_ij w_j p_i, -q_ij w_j clip(p_i, 1 - clip_low, 1 + clip_high))
        q_ij = A_i - A_j,   p_i = exp(sum_t (logp - old_logp)),   w_j = sg(clip(p_j, 1 / max_weight, max_weight))

    At the old policy, dl_i/dlogp = -(A_i - mean A of the others). Source: arXiv 2310.00212; P3OConfig.loss of
    thwu1/rlhf_sac (its first author), which has groups of two.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data; A_i is the row's mean. Centred rewards: q is then the difference of rewards.
      mask: bool [B, T].
      group_size: G, above 1; the rows of a group are neighbours.
      clip_low: distance from 1.
      clip_high: distance from 1.
      max_weight: bound of the other answer's ratio, and the inverse of its other bound.

    Returns:
      Surrogate with the ratio p_i; a row counts as clipped if one of its pairs is.

    Raises:
      ValueError: if group_size is below 2 or does not divide B, or max_weight is below 1.
    """
    totals, gaps = _pairs(log_probs, old_log_probs, advantages, mask, group_size, max_weight)
    bound = math.log(max_weight)
    weights = jnp.exp(jnp.clip(jax.lax.stop_gradient(totals), -bound, bound))[:, None, :]
    ratios = finite_exp(jnp.broadcast_to(totals[:, :, None], gaps.shape), gaps >= 0)
    losses = jnp.maximum(
        -gaps * weights * ratios, -gaps * weights * jnp.clip(ratios, 1.0 - clip_low, 1.0 + clip_high)
    )
    low, high = (gaps < 0) & (ratios < 1.0 - clip_low), (gaps > 0) & (ratios > 1.0 + clip_high)
    return _on_tokens(losses, totals, low, high, mask)


def joint(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    group_size: int,
    clip: float = 0.2,
    max_weight: float = 10.0,
) -> Surrogate:
    """P3O-V2: the log of the quotient of a pair's ratios is clipped, and weighted by their product.

        l_i = mean over j != i of 1/2 max(-q_ij w_ij d_ij, -q_ij w_ij clip(d_ij, -clip, clip))
        q_ij = A_i - A_j,   d_ij = log(p_i / p_j),   w_ij = sg(clip(p_i p_j, 1 / max_weight, max_weight))

    p_i as in `separate`, whose gradient it has at the old policy; a pair that has parted by more than clip has none.
    Source: arXiv 2310.00212; P3OConfig.loss of thwu1/trlx (its first author), less a constant: there d is of the ratios
    to the reference and the bounds lie around that of the old policy.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data; A_i is the row's mean. Centred rewards: q is then the difference of rewards.
      mask: bool [B, T].
      group_size: G, above 1; the rows of a group are neighbours.
      clip: bound of d on both sides, in nats.
      max_weight: bound of the product, and the inverse of its other bound.

    Returns:
      Surrogate with the ratio p_i; a row counts as clipped if one of its pairs is.

    Raises:
      ValueError: if group_size is below 2 or does not divide B, or max_weight is below 1.
    """
    totals, gaps = _pairs(log_probs, old_log_probs, advantages, mask, group_size, max_weight)
    bound = math.log(max_weight)
    both = jax.lax.stop_gradient(totals[:, :, None] + totals[:, None, :])
    slopes = -0.5 * gaps * jnp.exp(jnp.clip(both, -bound, bound))
    parted = totals[:, :, None] - totals[:, None, :]
    losses = jnp.maximum(slopes * parted, slopes * jnp.clip(parted, -clip, clip))
    return _on_tokens(losses, totals, (gaps < 0) & (parted < -clip), (gaps > 0) & (parted > clip), mask)


def _pairs(log_probs, old_log_probs, advantages, mask, group_size, max_weight) -> tuple[chex.Array, chex.Array]:
    """(log p_i, float [N, G], differentiated; A_i - A_j, float [N, G, G], data)."""
    assert_tokens(mask, log_probs, old_log_probs, advantages)
    if group_size < 2 or len(mask) % group_size:
        raise ValueError(f"group_size={group_size} must be at least 2, to make pairs, and divide the {len(mask)} rows")
    if max_weight < 1:
        raise ValueError(f"max_weight={max_weight} must be at least 1")
    totals = masked_sum(log_ratio(log_probs, old_log_probs, mask), mask, axis=1).reshape(-1, group_size)
    of_rows = jax.lax.stop_gradient(row_mean(advantages, mask)[:, 0]).reshape(-1, group_size)
    return totals, of_rows[:, :, None] - of_rows[:, None, :]


def _on_tokens(losses, totals, low, high, mask) -> Surrogate:
    """The Surrogate of rows, from losses and flags of pairs [N, G, G], and log ratios [N, G]."""
    others = losses.shape[1] - 1

    def on_rows(x):
        return zero_masked(jnp.broadcast_to(x.reshape(-1, 1), mask.shape), mask)

    ratio = jnp.where(mask, jnp.broadcast_to(jnp.exp(totals).reshape(-1, 1), mask.shape), 1.0)
    return Surrogate(
        loss=on_rows(jnp.sum(losses, axis=2) / others),
        ratio=jax.lax.stop_gradient(ratio),
        clipped_low=mask & jnp.any(low, axis=2).reshape(-1, 1),
        clipped_high=mask & jnp.any(high, axis=2).reshape(-1, 1),
    )
