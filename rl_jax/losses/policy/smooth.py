"""Surrogates that keep the policy close to the old one by a smooth term instead of a clip."""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked
from rl_jax.losses.policy.base import Surrogate, assert_tokens, log_ratio
from rl_jax.losses.policy.clipped import finite_exp


def _unclipped(loss: chex.Array, log_ratios: chex.Array, mask: chex.Array) -> Surrogate:
    """The Surrogate of a loss made of masked arrays only, which is therefore 0 outside the mask."""
    never = jnp.zeros_like(mask)
    ratio = jnp.exp(jax.lax.stop_gradient(log_ratios))
    return Surrogate(loss, ratio, clipped_low=never, clipped_high=never)


def sapo(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> Surrogate:
    """SAPO: a soft clip on both sides.

        l = -A (4 / tau) sigmoid(tau (r - 1)), r = exp(logp - old_logp)
        dl/dlogp = -A 4 r s (1 - s), s the sigmoid: -A on-policy

    Source: arXiv 2511.20347.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].
      tau_positive: tau if A > 0; positive. As tau -> 0 the gradient is that of importance sampling (the value differs
        from it by a constant).
      tau_negative: tau otherwise; positive.

    Raises:
      AssertionError: if a tau is not positive.
    """
    assert_tokens(mask, log_probs, old_log_probs, advantages)
    chex.assert_scalar_positive(tau_positive)
    chex.assert_scalar_positive(tau_negative)
    advantages = jax.lax.stop_gradient(zero_masked(advantages, mask))
    log_ratios = log_ratio(log_probs, old_log_probs, mask)
    tau = jnp.where(advantages > 0, tau_positive, tau_negative)
    soft = 4.0 / tau * jax.nn.sigmoid(tau * (finite_exp(log_ratios, mask) - 1.0))
    return _unclipped(-advantages * soft, log_ratios, mask)


def dro(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    tau: float = 0.1,
) -> Surrogate:
    """DRO, Kimi-1.5: policy gradient with a squared log-ratio penalty, minimal at logp = old_logp + A / tau.

        l = -A logp + tau / 2 (logp - old_logp)^2
        dl/dlogp = -A + tau (logp - old_logp)

    Source: arXiv 2501.12599; DRO arXiv 2405.19107.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].
      tau: weight of the square, >= 0; 0.1 in ROLL, no default in verl ("dro_beta"). Trinity's k2 has no 1/2.
    """
    assert_tokens(mask, log_probs, old_log_probs, advantages)
    advantages = jax.lax.stop_gradient(zero_masked(advantages, mask))
    log_ratios = log_ratio(log_probs, old_log_probs, mask)
    loss = -advantages * zero_masked(log_probs, mask) + 0.5 * tau * jnp.square(log_ratios)
    return _unclipped(loss, log_ratios, mask)


def kl_cov(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    selected: chex.Array,
    coef: float = 1.0,
) -> Surrogate:
    """KL-Cov: a penalty on selected tokens, no clip.

        l = -A r + coef |logp - old_logp| on the selected tokens, -A r on the others

    On-policy dl/dlogp = -A; the kink of the penalty at 0 has no gradient. Source: arXiv 2505.22617.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].
      selected: bool [B, T]. The tokens of the largest covariance between A and logp over the whole batch.
      coef: weight of the penalty; 1 in the paper's code, 0.1 in verl's yaml ("ppo_kl_coef").
    """
    assert_tokens(mask, log_probs, old_log_probs, advantages)
    chex.assert_equal_shape([selected, mask])
    chex.assert_type(selected, bool)
    advantages = jax.lax.stop_gradient(zero_masked(advantages, mask))
    log_ratios = log_ratio(log_probs, old_log_probs, mask)
    # The gradient of |x| at 0 is 1 in jax and 0 in torch; with jax's, coef would push every selected token on-policy.
    distance = jnp.where(log_ratios == 0, 0.0, jnp.abs(log_ratios))
    loss = -advantages * finite_exp(log_ratios, advantages == 0) + jnp.where(selected, coef * distance, 0.0)
    return _unclipped(loss, log_ratios, mask)
