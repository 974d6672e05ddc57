"""Surrogates in score-function form: l = -sg(W) A logp, so that dl/dlogp = -W A whatever W is.

W is a weight on each token, without gradient; a method is its W. A token is never pushed by its clip, only weighted.
The value of l is no measure of anything: watch the reward. `gated` takes W as an argument (see gates.py).
"""

from collections.abc import Callable, Mapping

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.binding import bind, supply
from rl_jax.core.masked import masked_sum, zero_masked
from rl_jax.losses.policy import gates
from rl_jax.losses.policy.base import Surrogate, assert_tokens, log_ratio, row_mean


def detached(log_ratios: chex.Array, advantages: chex.Array, mask: chex.Array) -> tuple[chex.Array, chex.Array]:
    """exp(log_ratios) and the advantages as constants, 1 and 0 behind the mask. float [B, T] x2, bool [B, T]."""
    assert_tokens(mask, log_ratios, advantages)
    return jnp.exp(jax.lax.stop_gradient(log_ratios)), jax.lax.stop_gradient(zero_masked(advantages, mask))


def _row_sum(per_token: chex.Array, mask: chex.Array) -> chex.Array:
    """Each row's sum over its tokens, on its tokens; 0 behind the mask. float [B, T], bool [B, T] -> float [B, T]."""
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
    """The Surrogate of l = -sg(W) A logp, W = weight: what every function here returns.

    log_probs, weight, ratio, advantages: float [B, T]. mask, and low, high (where a bound is active): bool [B, T].
    """
    push = jax.lax.stop_gradient(zero_masked(weight * advantages, mask))
    return Surrogate(
        loss=-push * zero_masked(log_probs, mask), ratio=ratio, clipped_low=mask & low, clipped_high=mask & high
    )


def reinforce(log_probs: chex.Array, old_log_probs: chex.Array, advantages: chex.Array, mask: chex.Array) -> Surrogate:
    """l = -A logp: REINFORCE, and GPG with its own advantage. Old log-probs enter the reported ratio only.

    log_probs: float [B, T], differentiated. old_log_probs, advantages: float [B, T], data. mask: bool [B, T].
    Returns a Surrogate; nothing is ever clipped. Source: Williams, 1992; GPG arXiv 2504.02546.
    """
    ratio, advantages = detached(log_ratio(log_probs, old_log_probs, mask), advantages, mask)
    return weighted_surrogate(log_probs, jnp.ones_like(ratio), ratio, advantages, mask)


def importance_sampling(
    log_probs: chex.Array, old_log_probs: chex.Array, advantages: chex.Array, mask: chex.Array
) -> Surrogate:
    """l = -A r, r = exp(logp - old_logp): the objective that PPO clips; dl/dlogp = -A r.

    log_probs: float [B, T], differentiated. old_log_probs, advantages: float [B, T], data. mask: bool [B, T].
    Returns a Surrogate; nothing is ever clipped. Source: arXiv 1707.06347 eq. 6 (CPI).
    """
    log_ratios = log_ratio(log_probs, old_log_probs, mask)
    ratio, advantages = detached(log_ratios, advantages, mask)
    never = jnp.zeros_like(mask)
    return Surrogate(-advantages * jnp.exp(log_ratios), ratio, clipped_low=never, clipped_high=never)


def cispo(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    ratio_min: float = 0.0,
    ratio_max: float = 5.0,
) -> Surrogate:
    """l = -sg(clip(r, ratio_min, ratio_max)) A logp: weights saturate, and no token loses its gradient.

    log_probs: float [B, T], differentiated. old_log_probs, advantages: float [B, T], data. mask: bool [B, T].
    ratio_min, ratio_max: ABSOLUTE bounds, not distances from 1. The paper has no lower bound and gives no number for
        the upper one; 5 is ScaleRL's. The frameworks read their "epsilon .2" in four ways: TRL (0, .2), absolute, so
        that even an on-policy token weighs .2 (its documentation advises 5); verl, slime and NeMo-RL (.8, 1.2);
        open-instruct (0, 1.272); SkyRL (0, 5). ROLL has (.9, 1.1).
    Returns a Surrogate; clipped_low and clipped_high are where a bound replaced the ratio, for either sign of A.
    Source: arXiv 2506.13585; ScaleRL arXiv 2510.13786.
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
    """l = -sg(min(r, ratio_max)) A logp: a token never weighs more than on-policy, whatever the sign of A.

    log_probs: float [B, T], differentiated. old_log_probs, advantages: float [B, T], data. mask: bool [B, T].
    ratio_max: an absolute bound. Returns a Surrogate; clipped_high is where it replaced the ratio.
    Source: ROLL's loss "tis" (clip(r, 0, 1)). Not the sampler weight that other frameworks call TIS (weights.py).
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
    """l = -sg(min(pi / mu, ratio_max)) A logp, mu the policy that sampled: no proximal policy, no clip.

    log_probs: float [B, T], differentiated. behavior_log_probs, advantages: float [B, T], data. mask: bool [B, T].
    old_log_probs: float [B, T], not used. ratio_max: rho; the paper gives the range 2 to 10 and no default.
    Returns a Surrogate; its ratio is pi / mu, and clipped_high is where rho replaced it. Source: arXiv 2505.24034.
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
    """l = -A logp where A >= 0, -sg(min(r, 1)) A logp elsewhere: what has become unlikely is not pushed down further.

    log_probs: float [B, T], differentiated. old_log_probs, advantages: float [B, T], data; the sign of A stands for
        that of the paper's reward. mask: bool [B, T].
    sequence_ratio: r is the product of the row's ratios, as in the paper; False: each token's own, as in ROLL.
    Returns a Surrogate with that r; clipped_high is where A < 0 and 1 replaced it. Source: arXiv 2503.14286.
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
    """l = -sg(M) A logp, M = 1[A > 0: r <= 1 + clip_high; A < 0: r >= 1 - clip_low]: PPO's mask without its ratio.

    log_probs: float [B, T], differentiated. old_log_probs, advantages: float [B, T], data. mask: bool [B, T].
    clip_low, clip_high: distances from 1, not bounds. Returns a Surrogate with the clips of `clipped_surrogate`.
    Source: arXiv 2509.24203 (REC-OneSide-NoIS); Trinity-RFT.
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
    """l = -sg(W^k exp(lambda (1 - W))) A logp, W the product of the row's ratios: a soft clip without a bound.

    log_probs: float [B, T], differentiated. old_log_probs, advantages: float [B, T], data. mask: bool [B, T].
    k_positive, lambda_positive: k and lambda where A >= 0; the others elsewhere. The factor is largest at W = k/lambda.
    Returns a Surrogate with the ratio W. TRL multiplies W by the sampler weights of the row: give this function the
    sampler's log-probs as the old ones for that. Source: arXiv 2602.10693; constants of TRL 1.16.
    """
    log_ratios = log_ratio(log_probs, old_log_probs, mask)
    ratio, advantages = detached(_row_sum(log_ratios, mask), advantages, mask)
    # In logs W may overflow and W^k exp(-lambda W) is still the 0 that it should be. Two numbers a row, not a token.
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
    """l = -sg(W(r, A)) A logp: a method by its gate alone.

        {"fn": "gated", "gate": "ppo_gate"}                                                     a config
        {"fn": "gated", "gate": {"fn": "ppo_gate", "clip_high": 0.28}, "level": "geometric"}    another one
        functools.partial(gated, gate=lambda ratio, advantages: jnp.sqrt(ratio))                a notebook

    log_probs: float [B, T], differentiated. old_log_probs, advantages: float [B, T], data. mask: bool [B, T].
    gate: a name in gates.py, {"fn": name or function, **keywords}, or a function (ratio, advantages) -> float [B, T].
        It may also ask for log_probs, old_log_probs (0 behind the mask) and mask, by required keywords.
    level: the ratio of the "token", the "geometric" mean over its row, or the row's "product". The product's loss is a
        sum over tokens: aggregate it with seq_mean_token_sum.
    Returns a Surrogate with that ratio; clipped_low and clipped_high are where the gate is 0, by the sign of A.
    Raises ValueError for an unknown level, gate or keyword, AssertionError where a gate changes shape or type.
    Source: the kernel in gates.py.
    """
    levels = {"token": lambda x, _: x, "geometric": row_mean, "product": _row_sum}
    if level not in levels:
        raise ValueError(f"unknown level {level!r}; there are: {', '.join(levels)}")
    log_ratios = log_ratio(log_probs, old_log_probs, mask)
    ratio, advantages = detached(zero_masked(levels[level](log_ratios, mask), mask), advantages, mask)
    context = {"log_probs": zero_masked(log_probs, mask), "old_log_probs": zero_masked(old_log_probs, mask)}
    weight = jnp.asarray(supply(bind(gate, gates), context | {"mask": mask})(ratio, advantages))
    assert_tokens(mask, weight)
    closed = weight == 0
    return weighted_surrogate(
        log_probs, weight, ratio, advantages, mask, low=closed & (advantages < 0), high=closed & (advantages > 0)
    )
