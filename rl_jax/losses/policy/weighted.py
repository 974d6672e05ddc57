"""Surrogates in score-function form: l = -sg(W) A logp, so that dl/dlogp = -W A for any W.

W is a weight per token, without gradient; a method is defined by its W. A clip only changes a token's weight and adds
no gradient of its own. The value of l is not meaningful: watch the reward. `gated` takes W as an argument (see
gates.py).
"""

from collections.abc import Callable, Mapping

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.binding import bind, supply
from rl_jax.core.masked import masked_sum, zero_masked
from rl_jax.losses.policy import gates
from rl_jax.losses.policy.base import Surrogate, assert_tokens, log_ratio, row_mean
from rl_jax.losses.policy.clipped import finite_exp


def detached(log_ratios: chex.Array, advantages: chex.Array, mask: chex.Array) -> tuple[chex.Array, chex.Array]:
    """exp(log_ratios) and the advantages as constants, 1 and 0 outside the mask. float [B, T] x2, bool [B, T]."""
    assert_tokens(mask, log_ratios, advantages)
    return jnp.exp(jax.lax.stop_gradient(log_ratios)), jax.lax.stop_gradient(zero_masked(advantages, mask))


def _row_sum(per_token: chex.Array, mask: chex.Array) -> chex.Array:
    """Each row's sum over its tokens, on its tokens; 0 outside the mask. float [B, T], bool [B, T] -> float [B, T]."""
    return zero_masked(jnp.broadcast_to(masked_sum(per_token, mask, axis=1)[:, None], mask.shape), mask)


def weighted_surrogate(
    log_probs: chex.Array,
    weight: chex.Array,
    ratio: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    low: chex.Array | bool = False,
    high: chex.Array | bool = False,
) -> Surrogate:
    """The Surrogate of l = -sg(W) A logp with W = weight, which every function here returns.

    Args:
      log_probs: float [B, T].
      weight: float [B, T].
      ratio: float [B, T].
      advantages: float [B, T].
      mask: bool [B, T].
      low: bool [B, T]. Tokens whose lower bound is active.
      high: bool [B, T]. Tokens whose upper bound is active.
    """
    # Without an advantage there is no push, though the weight be an overflowed ratio: 0 * inf is nan.
    push = jax.lax.stop_gradient(zero_masked(weight * advantages, mask & (advantages != 0)))
    return Surrogate(
        loss=-push * zero_masked(log_probs, mask), ratio=ratio, clipped_low=mask & low, clipped_high=mask & high
    )


def reinforce(log_probs: chex.Array, old_log_probs: chex.Array, advantages: chex.Array, mask: chex.Array) -> Surrogate:
    """l = -A logp: REINFORCE, and GPG with its own advantage.

    Source: Williams, 1992; GPG arXiv 2504.02546.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data; used for the reported ratio only.
      advantages: float [B, T], data.
      mask: bool [B, T].

    Returns:
      Surrogate; nothing is ever clipped.
    """
    ratio, advantages = detached(log_ratio(log_probs, old_log_probs, mask), advantages, mask)
    return weighted_surrogate(log_probs, jnp.ones_like(ratio), ratio, advantages, mask)


def importance_sampling(
    log_probs: chex.Array, old_log_probs: chex.Array, advantages: chex.Array, mask: chex.Array
) -> Surrogate:
    """The objective that PPO clips: l = -A r, r = exp(logp - old_logp); dl/dlogp = -A r.

    Source: arXiv 1707.06347 eq. 6 (CPI).

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].

    Returns:
      Surrogate; nothing is ever clipped.
    """
    log_ratios = log_ratio(log_probs, old_log_probs, mask)
    ratio, advantages = detached(log_ratios, advantages, mask)
    never = jnp.zeros_like(mask)
    loss = -advantages * finite_exp(log_ratios, advantages == 0)
    return Surrogate(loss, ratio, clipped_low=never, clipped_high=never)


def cispo(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    ratio_min: float = 0.0,
    ratio_max: float = 5.0,
) -> Surrogate:
    """Clipped importance weights: weights saturate, and no token loses its gradient.

        l = -sg(clip(r, ratio_min, ratio_max)) A logp

    Source: arXiv 2506.13585; ScaleRL arXiv 2510.13786.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].
      ratio_min: ABSOLUTE bound, not a distance from 1. The paper has no lower bound.
      ratio_max: ABSOLUTE bound, not a distance from 1. The paper gives no number; 5 is ScaleRL's. The frameworks read
        their "epsilon .2" in four ways: TRL (0, .2), absolute, so that even an on-policy token weighs .2 (its
        documentation advises 5); verl, slime and NeMo-RL (.8, 1.2); open-instruct (0, 1.272); SkyRL (0, 5). ROLL has
        (.9, 1.1).

    Returns:
      Surrogate. clipped_low and clipped_high are set if a bound replaced the ratio, for either sign of A.
    """
    ratio, advantages = detached(log_ratio(log_probs, old_log_probs, mask), advantages, mask)
    weight = jnp.clip(ratio, ratio_min, ratio_max)
    low, high = ratio < ratio_min, ratio > ratio_max
    return weighted_surrogate(log_probs, weight, ratio, advantages, mask, low=low, high=high)


def truncated_is(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    ratio_max: float = 1.0,
) -> Surrogate:
    """Truncated importance weights: no token weighs more than on-policy, for either sign of A.

        l = -sg(min(r, ratio_max)) A logp

    Not the sampler weight that other frameworks call TIS (see rl_jax.token_weights).
    Source: ROLL's loss "tis" (clip(r, 0, 1)).

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].
      ratio_max: an absolute bound.

    Returns:
      Surrogate. clipped_high is set if the bound replaced the ratio.
    """
    ratio, advantages = detached(log_ratio(log_probs, old_log_probs, mask), advantages, mask)
    weight = jnp.minimum(ratio, ratio_max)
    return weighted_surrogate(log_probs, weight, ratio, advantages, mask, high=ratio > ratio_max)


def aipo(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    behavior_log_probs: chex.Array,
    ratio_max: float = 2.0,
) -> Surrogate:
    """Truncated importance weights against the sampler: no proximal policy and no clip.

        l = -sg(min(pi / mu, ratio_max)) A logp, mu the policy that sampled

    Source: arXiv 2505.24034.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], unused.
      advantages: float [B, T], data.
      mask: bool [B, T].
      behavior_log_probs: float [B, T], data.
      ratio_max: rho; the paper gives the range 2 to 10 and no default.

    Returns:
      Surrogate with the ratio pi / mu. clipped_high is set if rho replaced it.
    """
    assert_tokens(mask, old_log_probs)
    ratio, advantages = detached(log_ratio(log_probs, behavior_log_probs, mask), advantages, mask)
    weight = jnp.minimum(ratio, ratio_max)
    return weighted_surrogate(log_probs, weight, ratio, advantages, mask, high=ratio > ratio_max)


def topr(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    sequence_ratio: bool = True,
) -> Surrogate:
    """Truncated ratios for negative advantages only: tokens that have become unlikely are not pushed down further.

        l = -A logp if A >= 0, -sg(min(r, 1)) A logp otherwise

    Source: arXiv 2503.14286.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data. The sign of A replaces that of the paper's reward.
      mask: bool [B, T].
      sequence_ratio: True: r is the product of the row's ratios, as in the paper. False: each token's own, as in ROLL.

    Returns:
      Surrogate with that r. clipped_high is set if A < 0 and 1 replaced r.
    """
    log_ratios = log_ratio(log_probs, old_log_probs, mask)
    log_ratios = _row_sum(log_ratios, mask) if sequence_ratio else log_ratios
    ratio, advantages = detached(log_ratios, advantages, mask)
    weight = jnp.where(advantages < 0, jnp.minimum(ratio, 1.0), 1.0)
    return weighted_surrogate(log_probs, weight, ratio, advantages, mask, high=(advantages < 0) & (ratio > 1.0))


def rec_one_side(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Surrogate:
    """PPO's mask without its ratio.

        l = -sg(M) A logp, M = 1[A > 0: r <= 1 + clip_high; A < 0: r >= 1 - clip_low]

    Source: arXiv 2509.24203 (REC-OneSide-NoIS); Trinity-RFT.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].
      clip_low: distance from 1, not a bound.
      clip_high: distance from 1, not a bound.

    Returns:
      Surrogate with the clip flags of `clipped_surrogate`.
    """
    ratio, advantages = detached(log_ratio(log_probs, old_log_probs, mask), advantages, mask)
    low = (advantages < 0) & (ratio < 1.0 - clip_low)
    high = (advantages > 0) & (ratio > 1.0 + clip_high)
    weight = jnp.where(low | high, 0.0, jnp.ones_like(ratio))
    return weighted_surrogate(log_probs, weight, ratio, advantages, mask, low=low, high=high)


def vespo(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    k_positive: float = 2.0,
    lambda_positive: float = 3.0,
    k_negative: float = 3.0,
    lambda_negative: float = 2.0,
) -> Surrogate:
    """VESPO: a soft clip without a bound.

        l = -sg(W^k exp(lambda (1 - W))) A logp, W the product of the row's ratios

    The factor is largest at W = k/lambda. TRL multiplies W by the sampler weights of the row; for that, pass the
    sampler's log-probs as old_log_probs.
    Source: arXiv 2602.10693; constants of TRL 1.16.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].
      k_positive: k if A >= 0.
      lambda_positive: lambda if A >= 0.
      k_negative: k otherwise.
      lambda_negative: lambda otherwise.

    Returns:
      Surrogate with the ratio W.
    """
    log_ratios = log_ratio(log_probs, old_log_probs, mask)
    ratio, advantages = detached(_row_sum(log_ratios, mask), advantages, mask)
    # In logs, W may overflow and W^k exp(-lambda W) is still 0, as it should be. Two numbers per row, not per token.
    total = masked_sum(log_ratios, mask, axis=1)[:, None]
    positive = jnp.exp(k_positive * total - lambda_positive * jnp.expm1(total))
    negative = jnp.exp(k_negative * total - lambda_negative * jnp.expm1(total))
    weight = jnp.where(advantages < 0, negative, positive)
    return weighted_surrogate(log_probs, weight, ratio, advantages, mask)


def gated(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    gate: str | Callable | Mapping,
    level: str = "token",
) -> Surrogate:
    """A method given by its gate alone: l = -sg(W(r, A)) A logp.

        {"fn": "gated", "gate": "ppo_gate"}                                                     a config
        {"fn": "gated", "gate": {"fn": "ppo_gate", "clip_high": 0.28}, "level": "geometric"}    another one
        functools.partial(gated, gate=lambda ratio, advantages: jnp.sqrt(ratio))                a notebook

    Source: the kernel in gates.py.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].
      gate: a name in gates.py, {"fn": name or function, **keywords}, or a function (ratio, advantages) -> float [B, T].
        It may also ask for log_probs, old_log_probs (0 outside the mask) and mask, by required keywords.
      level: ratio of the "token", the "geometric" mean over its row, or the row's "product". The product's loss is a
        sum over tokens: aggregate it with seq_mean_token_sum.

    Returns:
      Surrogate with that ratio. clipped_low and clipped_high are set if the gate is 0, by the sign of A.

    Raises:
      ValueError: if the level, the gate or a keyword is unknown.
      AssertionError: if a gate changes shape or type.
    """
    levels = {"token": lambda x, _: x, "geometric": row_mean, "product": _row_sum}
    if level not in levels:
        raise ValueError(f"level={level!r} is none of {', '.join(levels)}")
    log_ratios = log_ratio(log_probs, old_log_probs, mask)
    ratio, advantages = detached(zero_masked(levels[level](log_ratios, mask), mask), advantages, mask)
    context = {"log_probs": zero_masked(log_probs, mask), "old_log_probs": zero_masked(old_log_probs, mask)}
    weight = jnp.asarray(supply(bind(gate, gates), context | {"mask": mask})(ratio, advantages))
    assert_tokens(mask, weight)
    closed = weight == 0
    return weighted_surrogate(
        log_probs, weight, ratio, advantages, mask, low=closed & (advantages < 0), high=closed & (advantages > 0)
    )
