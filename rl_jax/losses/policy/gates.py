"""Gates: the weight W(ratio, advantage) in the gradient that all policy surrogates share.

    dL / dlogp[i, t] = -c w W(ratio, A) A k        c aggregation, w sampler weight, A advantage, k token weight

A gate is `fn(ratio, advantages, *, ...) -> W`, all float [B, T] and without gradient. The ratio is exp(logp - old_logp)
of the token, or the ratio of the whole row on each of its tokens. A gate that needs more asks for it by name:
log_probs, old_log_probs (0 outside the mask) or mask. `rl_jax.losses.policy.gated` turns a gate into a surrogate. Each
gate is derived from the derivative and shares no code with the surrogate of the same name, so each checks the other.
"""

import chex
import jax
import jax.numpy as jnp

_PROBABILITY_EPS = 1e-8  # verl's: keeps the binary KL finite if a probability was rounded to 1


def _assert_gate(ratio: chex.Array, advantages: chex.Array, *more: chex.Array) -> None:
    chex.assert_rank(ratio, 2)
    chex.assert_equal_shape([ratio, advantages, *more])
    chex.assert_type([ratio, advantages, *more], float)


def _kept(weight: chex.Array, positive: chex.Array, negative: chex.Array, advantages: chex.Array) -> chex.Array:
    """`weight` if A > 0 and `positive`, or if A <= 0 and `negative`; 0 otherwise."""
    return jnp.where(jnp.where(advantages > 0, positive, negative), weight, 0.0)


def reinforce_gate(ratio: chex.Array, advantages: chex.Array) -> chex.Array:
    """W = 1: `reinforce`. float [B, T] x2 -> float [B, T]. Source: Williams, 1992."""
    _assert_gate(ratio, advantages)
    return jnp.ones_like(ratio)


def importance_sampling_gate(ratio: chex.Array, advantages: chex.Array) -> chex.Array:
    """W = r: `importance_sampling`, the unclipped objective. float [B, T] x2 -> float [B, T]."""
    _assert_gate(ratio, advantages)
    return ratio


def ppo_gate(ratio: chex.Array, advantages: chex.Array, *, clip_low: float = 0.2, clip_high: float = 0.2) -> chex.Array:
    """`clipped_surrogate`, and GSPO on the ratio of a row.

        W = r 1[A > 0: r <= 1 + clip_high; else r >= 1 - clip_low]

    Source: arXiv 1707.06347 eq. 7.

    Args:
      ratio: float [B, T].
      advantages: float [B, T].
      clip_low: distance from 1.
      clip_high: distance from 1.

    Returns:
      float [B, T].
    """
    _assert_gate(ratio, advantages)
    return _kept(ratio, ratio <= 1.0 + clip_high, ratio >= 1.0 - clip_low, advantages)


def dual_clip_gate(
    ratio: chex.Array,
    advantages: chex.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float = 3.0,
) -> chex.Array:
    """`dual_clip`: PPO's gate with an upper bound c = dual_clip if A < 0.

        W = r 1[A > 0: r <= 1 + clip_high; else 1 - clip_low <= r <= c]

    Source: arXiv 1912.09729.

    Args:
      ratio: float [B, T].
      advantages: float [B, T].
      clip_low: distance from 1.
      clip_high: distance from 1.
      dual_clip: a bound.

    Returns:
      float [B, T].
    """
    _assert_gate(ratio, advantages)
    negative = (ratio >= 1.0 - clip_low) & (ratio <= dual_clip)
    return _kept(ratio, ratio <= 1.0 + clip_high, negative, advantages)


def two_sided_clip_gate(
    ratio: chex.Array,
    advantages: chex.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    delta: float = 4.0,
) -> chex.Array:
    """The gate of `dual_clip` with c = delta: cutting off r at delta and l at -delta A gives the same gradient.

    Source: INTELLECT-2, arXiv 2505.07291; TRL's `delta`.

    Args:
      ratio: float [B, T].
      advantages: float [B, T].
      clip_low: distance from 1.
      clip_high: distance from 1.
      delta: a bound.

    Returns:
      float [B, T].
    """
    return dual_clip_gate(ratio, advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=delta)


def cispo_gate(
    ratio: chex.Array, advantages: chex.Array, *, ratio_min: float = 0.0, ratio_max: float = 5.0
) -> chex.Array:
    """W = clip(r, ratio_min, ratio_max): `cispo`. float [B, T] x2, absolute bounds -> float [B, T].

    Source: arXiv 2506.13585.
    """
    _assert_gate(ratio, advantages)
    return jnp.clip(ratio, ratio_min, ratio_max)


def truncated_is_gate(ratio: chex.Array, advantages: chex.Array, *, ratio_max: float = 1.0) -> chex.Array:
    """W = min(r, ratio_max): `truncated_is`. float [B, T] x2 -> float [B, T]. Source: ROLL's "tis"."""
    _assert_gate(ratio, advantages)
    return jnp.minimum(ratio, ratio_max)


def aipo_gate(ratio: chex.Array, advantages: chex.Array, *, ratio_max: float = 2.0) -> chex.Array:
    """W = min(r, ratio_max) with r against the sampler: `aipo`. float [B, T] x2 -> float [B, T].

    Source: arXiv 2505.24034.
    """
    return truncated_is_gate(ratio, advantages, ratio_max=ratio_max)


def topr_gate(ratio: chex.Array, advantages: chex.Array) -> chex.Array:
    """W = 1 if A >= 0, min(r, 1) otherwise: `topr`, on the token's ratio or the row's product. float [B, T] x2.

    Source: arXiv 2503.14286.
    """
    _assert_gate(ratio, advantages)
    return jnp.where((advantages < 0) & (ratio < 1.0), ratio, 1.0)


def rec_one_side_gate(
    ratio: chex.Array, advantages: chex.Array, *, clip_low: float = 0.2, clip_high: float = 0.2
) -> chex.Array:
    """`rec_one_side`: PPO's mask without its ratio.

        W = 1[A > 0: r <= 1 + clip_high; else r >= 1 - clip_low]

    Source: arXiv 2509.24203.

    Args:
      ratio: float [B, T].
      advantages: float [B, T].
      clip_low: distance from 1.
      clip_high: distance from 1.

    Returns:
      float [B, T].
    """
    _assert_gate(ratio, advantages)
    return _kept(jnp.ones_like(ratio), ratio <= 1.0 + clip_high, ratio >= 1.0 - clip_low, advantages)


def sapo_gate(
    ratio: chex.Array, advantages: chex.Array, *, tau_positive: float = 1.0, tau_negative: float = 1.05
) -> chex.Array:
    """W = 4 r s (1 - s), s = sigmoid(tau (r - 1)): `sapo`. 1 at r = 1, and r as tau -> 0.

    Source: arXiv 2511.20347.

    Args:
      ratio: float [B, T].
      advantages: float [B, T].
      tau_positive: tau if A > 0.
      tau_negative: tau otherwise.

    Returns:
      float [B, T].
    """
    _assert_gate(ratio, advantages)
    tau = jnp.where(advantages > 0, tau_positive, tau_negative)
    return 4.0 * ratio * jax.nn.sigmoid(tau * (ratio - 1.0)) * jax.nn.sigmoid(tau * (1.0 - ratio))


def vespo_gate(
    ratio: chex.Array,
    advantages: chex.Array,
    *,
    k_positive: float = 2.0,
    lambda_positive: float = 3.0,
    k_negative: float = 3.0,
    lambda_negative: float = 2.0,
) -> chex.Array:
    """W = r^k exp(lambda (1 - r)), r the product of the row's ratios: `vespo`. 1 at r = 1, largest at r = k / lambda.

    Source: arXiv 2602.10693.

    Args:
      ratio: float [B, T].
      advantages: float [B, T].
      k_positive: k if A >= 0.
      lambda_positive: lambda if A >= 0.
      k_negative: k otherwise.
      lambda_negative: lambda otherwise.

    Returns:
      float [B, T].
    """
    _assert_gate(ratio, advantages)
    k = jnp.where(advantages >= 0, k_positive, k_negative)
    decay = jnp.where(advantages >= 0, lambda_positive, lambda_negative)
    log_ratio = jnp.where(jnp.isinf(ratio), 0.0, jnp.log(ratio))  # the product of a long row can be inf; W is then 0
    return jnp.exp(k * log_ratio + decay * (1.0 - ratio))


def dppo_tv_gate(
    ratio: chex.Array,
    advantages: chex.Array,
    *,
    old_log_probs: chex.Array,
    divergence_low: float = 0.15,
    divergence_high: float = 0.15,
    ratio_max: float = 20.0,
) -> chex.Array:
    """`dppo_tv`.

        W = min(r, ratio_max) 1[A > 0: p - p_old <= divergence_high; else p - p_old >= -divergence_low]
        p_old = exp(old_log_probs), p = r p_old

    Source: arXiv 2602.04879.

    Args:
      ratio: float [B, T].
      advantages: float [B, T].
      old_log_probs: float [B, T].
      divergence_low: in probability, 0 to 1.
      divergence_high: in probability, 0 to 1.
      ratio_max: an absolute bound.

    Returns:
      float [B, T].
    """
    _assert_gate(ratio, advantages, old_log_probs)
    change = jnp.exp(old_log_probs + jnp.log(ratio)) - jnp.exp(old_log_probs)
    weight = jnp.minimum(ratio, ratio_max)
    return _kept(weight, change <= divergence_high, change >= -divergence_low, advantages)


def dppo_kl_gate(
    ratio: chex.Array,
    advantages: chex.Array,
    *,
    old_log_probs: chex.Array,
    divergence_low: float = 0.05,
    divergence_high: float = 0.05,
    ratio_max: float = 20.0,
) -> chex.Array:
    """`dppo_kl`: W = min(r, ratio_max) unless KL(p_old || p) is above its bound and r has moved away from 1.

        KL = -p_old log r + (1 - p_old) log((1 - p_old) / (1 - p)), of two Bernoulli distributions

    Away from 1 means r > 1 if A > 0, and r < 1 otherwise. Source: arXiv 2602.04879.

    Args:
      ratio: float [B, T].
      advantages: float [B, T].
      old_log_probs: float [B, T].
      divergence_low: in nats.
      divergence_high: in nats.
      ratio_max: an absolute bound.

    Returns:
      float [B, T].
    """
    _assert_gate(ratio, advantages, old_log_probs)
    log_ratios = jnp.log(ratio)
    rest = jnp.maximum(-jnp.expm1(old_log_probs + log_ratios), 0.0) + _PROBABILITY_EPS
    old_rest = jnp.maximum(-jnp.expm1(old_log_probs), 0.0) + _PROBABILITY_EPS
    divergence = old_rest * (jnp.log(old_rest) - jnp.log(rest)) - jnp.exp(old_log_probs) * log_ratios
    positive = (ratio <= 1.0) | (divergence <= divergence_high)
    negative = (ratio >= 1.0) | (divergence <= divergence_low)
    return _kept(jnp.minimum(ratio, ratio_max), positive, negative, advantages)
