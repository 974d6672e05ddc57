"""Surrogates whose clip is another set of ratios than PPO's: both sides of a band, a ring around it, a bound per token.

Named in a config by their import path, "rl_jax.losses.policy.bands:rec_ring".
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked
from rl_jax.losses.policy.base import Surrogate, assert_tokens, log_ratio
from rl_jax.losses.policy.clipped import finite_exp, ppo_clip
from rl_jax.losses.policy.weighted import detached, weighted_surrogate


def rec_two_side(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    importance: bool = True,
) -> Surrogate:
    """A token takes part only if its ratio is near 1, whichever way its advantage pushes it.

        l = -sg(r M) A logp, M = 1[1 - clip_low <= r <= 1 + clip_high]

    Source: arXiv 2509.24203 (REC-TwoSide-IS); Trinity-RFT's clip_mode "two-side" with weight "importance_sampling".

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].
      clip_low: distance from 1, not a bound.
      clip_high: distance from 1, not a bound.
      importance: False leaves out the factor r (NoIS).

    Returns:
      Surrogate. clipped_low and clipped_high are set if the gradient of a token with A != 0 was removed.
    """
    ratio, advantages = detached(log_ratio(log_probs, old_log_probs, mask), advantages, mask)
    low = (advantages != 0) & (ratio < 1.0 - clip_low)
    high = (advantages != 0) & (ratio > 1.0 + clip_high)
    weight = jnp.where(low | high, 0.0, ratio if importance else jnp.ones_like(ratio))
    return weighted_surrogate(log_probs, weight, ratio, advantages, mask, low=low, high=high)


def rec_ring(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    outer_low: float = 0.6,
    outer_high: float = 2.0,
) -> Surrogate:
    """A band, and beyond a ring around it the tokens that their advantage pulls back.

        l = -sg(M) A logp, M = 1[1 - clip_low <= r <= 1 + clip_high]
                             + 1[A > 0, r <= 1 - outer_low] + 1[A < 0, r >= 1 + outer_high]

    Source: arXiv 2509.24203 (REC-Ring-NoIS); Trinity-RFT's clip_mode "ring" and its defaults.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].
      clip_low: distance of the band's lower edge from 1.
      clip_high: distance of the band's upper edge from 1.
      outer_low: distance of the ring's lower edge from 1, at least clip_low.
      outer_high: distance of the ring's upper edge from 1, at least clip_high.

    Returns:
      Surrogate. clipped_low and clipped_high are set if the gradient of a token with A != 0 was removed.

    Raises:
      ValueError: if the ring is inside the band.
    """
    if outer_low < clip_low or outer_high < clip_high:
        raise ValueError(
            f"the ring (outer_low={outer_low}, outer_high={outer_high}) must lie around the band "
            f"(clip_low={clip_low}, clip_high={clip_high})"
        )
    ratio, advantages = detached(log_ratio(log_probs, old_log_probs, mask), advantages, mask)
    returns_up = (advantages > 0) & (ratio <= 1.0 - outer_low)
    returns_down = (advantages < 0) & (ratio >= 1.0 + outer_high)
    low = (advantages != 0) & (ratio < 1.0 - clip_low) & ~returns_up
    high = (advantages != 0) & (ratio > 1.0 + clip_high) & ~returns_down
    weight = jnp.where(low | high, 0.0, jnp.ones_like(ratio))
    return weighted_surrogate(log_probs, weight, ratio, advantages, mask, low=low, high=high)


def dynamic_bounds(
    old_log_probs: chex.Array, *, clip_low: float, clip_high: float, ratio_max: float
) -> tuple[chex.Array, chex.Array]:
    """DCPO's bounds of a token's ratio, (lowest, highest), from its old probability q; float [...] each.

        1/2 + 1/2 sqrt(max(1 - 4 clip_low / q, 0)) <= r <= min(1/2 + 1/2 sqrt(1 + 4 clip_high / q), ratio_max)

    They solve |(r - 1) r q| = clip: the rarer a token, the further its ratio may go up. Source: arXiv 2509.02333.
    """
    inverse = jnp.exp(-old_log_probs)
    low = 0.5 + 0.5 * jnp.sqrt(jnp.maximum(1.0 - 4.0 * clip_low * inverse, 0.0))
    high = 0.5 + 0.5 * jnp.sqrt(1.0 + 4.0 * clip_high * inverse)
    return low, jnp.minimum(high, ratio_max)


def dcpo(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    clip_low: float = 0.16,
    clip_high: float = 0.2,
    ratio_max: float = 10.0,
) -> Surrogate:
    """DCPO's dynamic-adaptive clip: PPO's clip with `dynamic_bounds` for each token, and a dual clip.

        l = max(-A r, -A clip(r, low(q), high(q))), and at most -ratio_max A if A < 0;   q = exp(old_logp)

    Source: arXiv 2509.02333; its code (lime-RL/DCPO, clip_type "dynamic"), in which the cap is max(clip_ratio_c, 10)
    and clip_ratio_c, 10 in its scripts, is the dual clip.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].
      clip_low: bound of (1 - r) r q; .16 in the README.
      clip_high: bound of (r - 1) r q; .2 in the README, .28 in the training script.
      ratio_max: the highest upper bound, and the ratio beyond which a token with A < 0 has no gradient.

    Returns:
      Surrogate. clipped_high is also set if A < 0 and r > ratio_max.

    Raises:
      ValueError: if ratio_max <= 1.
    """
    if ratio_max <= 1:
        raise ValueError(f"ratio_max={ratio_max} must be larger than 1: it bounds the ratio from above")
    assert_tokens(mask, log_probs, old_log_probs, advantages)
    advantages = jax.lax.stop_gradient(zero_masked(advantages, mask))
    old_log_probs = jax.lax.stop_gradient(zero_masked(old_log_probs, mask))
    low, high = dynamic_bounds(old_log_probs, clip_low=clip_low, clip_high=clip_high, ratio_max=ratio_max)
    ratio = finite_exp(log_ratio(log_probs, old_log_probs, mask), mask)
    out = ppo_clip(ratio, advantages, mask, clip_low=1.0 - low, clip_high=high - 1.0)
    bound = jnp.where(advantages < 0, -ratio_max * advantages, jnp.inf)
    return out._replace(
        loss=jnp.minimum(out.loss, bound), clipped_high=out.clipped_high | ((advantages < 0) & (ratio > ratio_max))
    )
