"""PPO's clip with a turn of an episode as the action. Named by its import path in a config."""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked
from rl_jax.losses.policy.base import Surrogate, assert_tokens, log_ratio
from rl_jax.losses.policy.clipped import finite_exp, ppo_clip


def turn_clip(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    turns: chex.Array,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    geometric: bool = True,
) -> Surrogate:
    """PPO's clip on one ratio per turn.

        l_ij = max(-A_ij s_ij, -A_ij clip(s_ij, 1 - clip_low, 1 + clip_high)),   on each token of turn j
        s_ij = exp(sum_{t in turn j} (logp - old_logp) / n_ij),    n_ij its tokens, or 1 if not geometric

    A_ij is the mean of the turn's tokens' advantages. One turn in the row: `gspo`, or `product_ratio_clip`.
    Sources: arXiv 2512.17008 (Turn-PPO), arXiv 2502.01600 (LOOP's ratio per turn, a product), arXiv 2511.20718.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].
      turns: int32 [B, T], number of the turn on its tokens.
      clip_low: distance from 1.
      clip_high: distance from 1.
      geometric: the mean of the log ratios instead of their sum.

    Returns:
      Surrogate with the ratio s_ij.
    """
    assert_tokens(mask, log_probs, old_log_probs, advantages)
    chex.assert_equal_shape([turns, mask])
    width = mask.shape[1]
    ids = jnp.where(mask, jnp.clip(turns, 0, width - 1), width)

    def summed(x: chex.Array) -> chex.Array:
        sums = jax.vmap(lambda row, places: jax.ops.segment_sum(row, places, width + 1)[places])(x, ids)
        return zero_masked(sums, mask)

    tokens = jnp.maximum(summed(mask.astype(log_probs.dtype)), 1.0)
    advantages = jax.lax.stop_gradient(summed(zero_masked(advantages, mask)) / tokens)
    log_ratios = summed(log_ratio(log_probs, old_log_probs, mask)) / (tokens if geometric else 1.0)
    ratio = finite_exp(log_ratios, advantages >= 0)
    return ppo_clip(ratio, advantages, mask, clip_low=clip_low, clip_high=clip_high)
