"""Surrogates on the ratio of a whole completion: its geometric mean over tokens, or its product.

The loss of a row is on each of its tokens, so that seq_mean_token_mean is the papers' mean over completions. The
advantage of a row is the mean of its tokens' advantages; the papers have one advantage per completion.
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import masked_sum, zero_masked
from rl_jax.losses.policy.base import Surrogate, assert_tokens, log_ratio, row_mean
from rl_jax.losses.policy.clipped import finite_exp, ppo_clip


def _rows(log_probs, old_log_probs, advantages, mask) -> tuple[chex.Array, chex.Array]:
    """The tokens' log ratios, and each row's mean advantage on its tokens, as data. Both are 0 outside the mask."""
    assert_tokens(mask, log_probs, old_log_probs, advantages)
    advantages = jax.lax.stop_gradient(zero_masked(row_mean(advantages, mask), mask))
    return log_ratio(log_probs, old_log_probs, mask), advantages


def gspo(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> Surrogate:
    """PPO's clip on each row's geometric mean of ratios.

        l_i = max(-A_i s_i, -A_i clip(s_i, 1 - clip_low, 1 + clip_high))
        s_i = exp(1/n_i sum_t (logp - old_logp))

    With seq_mean_token_mean it is the paper's loss, with gradient dl_i/dlogp = -A_i s_i / n_i. With seq_mean_token_sum
    and the clip (2e-3, 2.5e-3) it is TRL's LUSPO.
    Source: arXiv 2507.18071.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data; A_i is the row's mean.
      mask: bool [B, T].
      clip_low: distance from 1; small, because it bounds a mean.
      clip_high: as clip_low.

    Returns:
      Surrogate with the ratio s_i.
    """
    log_ratios, advantages = _rows(log_probs, old_log_probs, advantages, mask)
    ratio = finite_exp(zero_masked(row_mean(log_ratios, mask), mask), advantages >= 0)
    return ppo_clip(ratio, advantages, mask, clip_low=clip_low, clip_high=clip_high)


def gspo_token(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    max_log_ratio: float = 10.0,
) -> Surrogate:
    """PPO's clip on s_it: the row's ratio in value, the token's own in gradient.

        s_it = sg(s_i) exp(logp - sg(logp))

    Aggregate it with seq_mean_token_mean. Source: arXiv 2507.18071.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data. May differ from token to token; if it does not, the gradient is that of `gspo`.
      mask: bool [B, T].
      clip_low: distance from 1.
      clip_high: distance from 1.
      max_log_ratio: log s_it is clamped to at most this, without gradient beyond; as in verl.

    Returns:
      Surrogate with the ratio s_i. clipped_high is also set if A < 0 and log s_i > max_log_ratio.
    """
    assert_tokens(mask, log_probs, old_log_probs, advantages)
    advantages = jax.lax.stop_gradient(zero_masked(advantages, mask))
    mean = row_mean(log_ratio(log_probs, old_log_probs, mask), mask)
    # log_ratio of the policy against itself: 0, with the gradient of logp. Of a token of probability 0 it would be nan.
    own = log_ratio(log_probs, log_probs, mask & (log_probs != -jnp.inf))
    log_ratios = zero_masked(jax.lax.stop_gradient(mean), mask) + own
    ratio = finite_exp(jnp.minimum(log_ratios, max_log_ratio), advantages >= 0)
    out = ppo_clip(ratio, advantages, mask, clip_low=clip_low, clip_high=clip_high)
    return out._replace(clipped_high=out.clipped_high | ((advantages < 0) & (log_ratios > max_log_ratio)))


def product_ratio_clip(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Surrogate:
    """PPO's clip with the whole completion as the action.

        l_i = max(-A_i p_i, -A_i clip(p_i, 1 - clip_low, 1 + clip_high))
        p_i = exp(sum_t (logp - old_logp))

    p_i = s_i^n_i, s_i as in `gspo`. With seq_mean_token_mean, dl_i/dlogp = -A_i p_i.
    Source: RLOO (arXiv 2402.14740) as TRL implements it for several updates per batch.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data; A_i is the row's mean.
      mask: bool [B, T].
      clip_low: distance from 1.
      clip_high: distance from 1.

    Returns:
      Surrogate with the ratio p_i.
    """
    log_ratios, advantages = _rows(log_probs, old_log_probs, advantages, mask)
    total = jnp.broadcast_to(masked_sum(log_ratios, mask, axis=1)[:, None], mask.shape)
    ratio = finite_exp(zero_masked(total, mask), advantages >= 0)
    return ppo_clip(ratio, advantages, mask, clip_low=clip_low, clip_high=clip_high)


def gmpo(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
) -> Surrogate:
    """The geometric mean of clipped ratios, each token clipped on one side only.

        l_i = -A_i exp(1/n_i sum_t q)
        q = min(logp - old_logp, clip_high) if A_i > 0, max(logp - old_logp, -clip_low) otherwise

    With seq_mean_token_mean, dl_i/dlogp = -A_i ratio / n_i if the token is not clipped. With wide clips it is `gspo`
    without a clip.
    Source: arXiv 2507.20673.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data. A_i is the mean of the row's token advantages, and its sign chooses the side; the
        paper has one advantage per completion.
      mask: bool [B, T].
      clip_low: distance of the LOG ratio from 0. The paper's .4 is (.67, 1.49) in ratios.
      clip_high: as clip_low.

    Returns:
      Surrogate with the row's ratio exp(1/n_i sum_t q). The clip flags are per token.
    """
    log_ratios, advantages = _rows(log_probs, old_log_probs, advantages, mask)
    bounded = jnp.where(advantages > 0, jnp.minimum(log_ratios, clip_high), jnp.maximum(log_ratios, -clip_low))
    ratio = finite_exp(zero_masked(row_mean(bounded, mask), mask), advantages >= 0)
    return Surrogate(
        loss=-advantages * ratio,
        ratio=jax.lax.stop_gradient(ratio),
        clipped_low=(advantages < 0) & (log_ratios < -clip_low),
        clipped_high=(advantages > 0) & (log_ratios > clip_high),
    )
