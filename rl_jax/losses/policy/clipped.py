"""PPO's clipped surrogate and variants that clip the ratio of each token."""

import math

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked
from rl_jax.losses.policy.base import Surrogate, assert_tokens, log_ratio


def finite_exp(log_ratios: chex.Array, where: chex.Array) -> chex.Array:
    """exp(x), kept finite at selected places: beyond the dtype's range, a large constant without gradient.

    An infinite ratio that a clip has replaced would otherwise have the gradient 0 * inf = nan.

    Args:
      log_ratios: float [B, T].
      where: bool [B, T]. Places whose result must be finite.

    Returns:
      float [B, T].
    """
    chex.assert_equal_shape([log_ratios, where])
    largest = math.floor(math.log(jnp.finfo(log_ratios.dtype).max))  # 88 in float32
    return jnp.exp(jnp.where(where, jnp.minimum(log_ratios, largest), log_ratios))


def ppo_clip(
    ratio: chex.Array, advantages: chex.Array, mask: chex.Array, *, clip_low: float, clip_high: float
) -> Surrogate:
    """PPO's clip of any ratio: that of a token, or that of a row on each of its tokens.

        max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))

    Args:
      ratio: float [B, T], differentiated; 1 outside the mask.
      advantages: float [B, T], without gradient; 0 outside the mask.
      mask: bool [B, T].
      clip_low: distance of the lower bound from 1.
      clip_high: distance of the upper bound from 1.
    """
    assert_tokens(mask, ratio, advantages)
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    loss = jnp.maximum(-advantages * ratio, -advantages * clipped)
    return Surrogate(
        loss=zero_masked(loss, mask),
        ratio=jax.lax.stop_gradient(ratio),
        clipped_low=mask & (advantages < 0) & (ratio < 1.0 - clip_low),
        clipped_high=mask & (advantages > 0) & (ratio > 1.0 + clip_high),
    )


def _tokens(log_probs, old_log_probs, advantages, mask) -> tuple[chex.Array, chex.Array]:
    """The log ratios, and the advantages as data. Both are 0 outside the mask."""
    assert_tokens(mask, log_probs, old_log_probs, advantages)
    advantages = jax.lax.stop_gradient(zero_masked(advantages, mask))
    return log_ratio(log_probs, old_log_probs, mask), advantages


def _flag_guard(surrogate: Surrogate, log_ratios, advantages, max_log_ratio: float) -> Surrogate:
    """Adds flags on tokens whose gradient the guard of the log ratio removed. Tokens with A = 0 had none to lose."""
    pushed = advantages != 0
    return surrogate._replace(
        clipped_low=surrogate.clipped_low | (pushed & (log_ratios < -max_log_ratio)),
        clipped_high=surrogate.clipped_high | (pushed & (log_ratios > max_log_ratio)),
    )


def clipped_surrogate(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    max_log_ratio: float = math.inf,
) -> Surrogate:
    """PPO's clipped objective.

        l = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), r = exp(logp - old_logp)
        dl/dlogp = -A r unless (A > 0 and r > 1 + clip_high) or (A < 0 and r < 1 - clip_low)

    Source: arXiv 1707.06347 eq. 7; clip-higher arXiv 2503.14476.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data: gradients are stopped here.
      advantages: float [B, T], data: gradients are stopped here.
      mask: bool [B, T].
      clip_low: distance from 1, not a bound.
      clip_high: distance from 1, not a bound. DAPO's clip-higher is asymmetric, (.2, .28).
      max_log_ratio: logp - old_logp is clamped to +- this, and a token beyond it has no gradient; 20 in verl. Without
        it r may overflow: l is then inf if A < 0, and the clip's constant with gradient 0 if A > 0.
    """
    log_ratios, advantages = _tokens(log_probs, old_log_probs, advantages, mask)
    ratio = finite_exp(jnp.clip(log_ratios, -max_log_ratio, max_log_ratio), advantages >= 0)
    out = ppo_clip(ratio, advantages, mask, clip_low=clip_low, clip_high=clip_high)
    return _flag_guard(out, log_ratios, advantages, max_log_ratio)


def dual_clip(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float = 3.0,
    max_log_ratio: float = math.inf,
) -> Surrogate:
    """PPO's clipped objective with an upper bound on the loss if A < 0.

        l = min(l_ppo, -c A) if A < 0, l_ppo otherwise; c = dual_clip

    Source: arXiv 1912.09729.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].
      clip_low: as in `clipped_surrogate`.
      clip_high: as in `clipped_surrogate`.
      dual_clip: c > 1, a bound on the ratio and not a distance. verl always has it, 3 by default; ROLL's is 1 + 2 clip.
        inf is `clipped_surrogate`.
      max_log_ratio: as in `clipped_surrogate`.

    Returns:
      Surrogate. clipped_high is also set if A < 0 and r > c, which has no gradient.

    Raises:
      ValueError: if c <= 1.
    """
    if dual_clip <= 1:
        raise ValueError(f"dual_clip={dual_clip} must be larger than 1: it bounds the ratio from above")
    log_ratios, advantages = _tokens(log_probs, old_log_probs, advantages, mask)
    ratio = finite_exp(jnp.clip(log_ratios, -max_log_ratio, max_log_ratio), mask)
    out = ppo_clip(ratio, advantages, mask, clip_low=clip_low, clip_high=clip_high)
    bound = jnp.where(advantages < 0, -dual_clip * advantages, jnp.inf)
    out = out._replace(
        loss=jnp.minimum(out.loss, bound),
        clipped_high=out.clipped_high | ((advantages < 0) & (ratio > dual_clip)),
    )
    return _flag_guard(out, log_ratios, advantages, max_log_ratio)


def two_sided_clip(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    delta: float = 4.0,
) -> Surrogate:
    """PPO's clipped objective with r cut off at delta outside the clip.

        l = max(-A min(r, delta), -A clip(r, 1 - clip_low, 1 + clip_high))

    The same function as `dual_clip` with c = delta, under the name and with the value of INTELLECT-2 and TRL.
    Source: INTELLECT-2, arXiv 2505.07291; TRL's `delta`.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].
      clip_low: as in `clipped_surrogate`.
      clip_high: as in `clipped_surrogate`.
      delta: a bound on the ratio, above 1 + clip_high.

    Returns:
      Surrogate. clipped_high is also set if A < 0 and r > delta, which has no gradient.

    Raises:
      ValueError: if delta <= 1 + clip_high; between the two, a token with A < 0 would keep its gradient.
    """
    if delta <= 1.0 + clip_high:
        raise ValueError(f"delta={delta} must be above the clip, 1 + clip_high = {1.0 + clip_high}")
    log_ratios, advantages = _tokens(log_probs, old_log_probs, advantages, mask)
    ratio = finite_exp(log_ratios, mask)
    # clip(min(r, delta)) is clip(r), since delta is above the clip.
    out = ppo_clip(jnp.minimum(ratio, delta), advantages, mask, clip_low=clip_low, clip_high=clip_high)
    return out._replace(
        ratio=jax.lax.stop_gradient(ratio),
        clipped_high=out.clipped_high | ((advantages < 0) & (ratio > delta)),
    )
