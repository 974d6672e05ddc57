"""Per-token estimators [B, T] of KL(pi || pi_ref) from samples of pi (Schulman, "Approximating KL divergence").

With d = logp - ref_logp. As loss terms they differ in more than their values. On-policy:

    k1, k1_plus           d                 E[grad] = 0                    k1_plus: grad KL(pi || ref)
    k2                    d^2 / 2           E[grad] = grad KL(pi || ref)
    k3, k3_plus           e^-d + d - 1      E[grad] = grad KL(ref || pi)   k3_plus: grad KL(pi || ref)
    ratio_k1, ratio_k3    r d, r k3         E[grad] = grad KL(pi || ref), off-policy too
    the others            biased in both; what frameworks ship

Use k1 in the reward, k2 or ratio_k3 for the reverse-KL gradient, and k3 for the published GRPO. Values are clamped only
in functions with `clamped` in the name. The reference and the old policy are constants. tests/losses/test_kl.py
compares each expected gradient with the exact one.
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import row_means, zero_masked


def _difference(log_probs: chex.Array, ref_log_probs: chex.Array, mask: chex.Array) -> chex.Array:
    chex.assert_rank(mask, 2)
    chex.assert_type([log_probs, ref_log_probs], float)
    chex.assert_equal_shape([log_probs, ref_log_probs, mask])
    # The reference is a constant: masked before any exp, and stopped here, at its entry.
    return zero_masked(log_probs, mask) - jax.lax.stop_gradient(zero_masked(ref_log_probs, mask))


def k1(log_probs: chex.Array, ref_log_probs: chex.Array, mask: chex.Array) -> chex.Array:
    """logp - ref_logp: unbiased value, no expected gradient on-policy. float [B, T] x2, bool [B, T] -> float [B, T]."""
    return _difference(log_probs, ref_log_probs, mask)


def k2(log_probs: chex.Array, ref_log_probs: chex.Array, mask: chex.Array) -> chex.Array:
    """(logp - ref_logp)^2 / 2: biased value, the gradient of KL(pi || ref). float [B, T] x2, bool -> float [B, T]."""
    return 0.5 * jnp.square(_difference(log_probs, ref_log_probs, mask))


def k3(log_probs: chex.Array, ref_log_probs: chex.Array, mask: chex.Array) -> chex.Array:
    """exp(ref - logp) - (ref - logp) - 1: unbiased, >= 0; GRPO's. float [B, T] x2, bool [B, T] -> float [B, T].

    expm1 keeps the small values that exp(x) - 1 rounds away. Source: arXiv 2402.03300 eq. 4.
    """
    difference = _difference(log_probs, ref_log_probs, mask)
    return jnp.expm1(-difference) + difference


def absolute(log_probs: chex.Array, ref_log_probs: chex.Array, mask: chex.Array) -> chex.Array:
    """|logp - ref_logp|: not an estimate of the KL, and its expected gradient has another direction (verl's "abs").

    float [B, T] x2, bool [B, T] -> float [B, T]. The gradient at 0 is 0, as in torch; that of jnp.abs would be 1.
    """
    difference = _difference(log_probs, ref_log_probs, mask)
    return jnp.where(difference == 0, 0.0, jnp.abs(difference))


def k3_clamped(
    log_probs: chex.Array,
    ref_log_probs: chex.Array,
    mask: chex.Array,
    *,
    max_difference: float = 20.0,
    max_value: float = 10.0,
) -> chex.Array:
    """k3 with clamped input and output; no gradient if either clamp is active.

        min(k3, max_value), with logp - ref_logp clamped to +-max_difference first

    Tokens that the reference likes best lose their gradient, so the gradient shrinks.

    Args:
      log_probs: float [B, T].
      ref_log_probs: float [B, T].
      mask: bool [B, T].
      max_difference: in nats, keeps exp finite. Default: verl's low_var_kl, 20.
      max_value: in nats. Default: verl's low_var_kl, 10; OpenRLHF and ms-swift clamp at 10 too.
    """
    difference = jnp.clip(_difference(log_probs, ref_log_probs, mask), -max_difference, max_difference)
    return jnp.minimum(jnp.expm1(-difference) + difference, max_value)


def _with_gradient_of_k2(value: chex.Array, log_probs, ref_log_probs, mask: chex.Array) -> chex.Array:
    """`value` with the gradient of k2: `value` without gradient, plus k2 minus itself, which is exactly 0."""
    path = k2(log_probs, ref_log_probs, mask)
    return jax.lax.stop_gradient(value) + (path - jax.lax.stop_gradient(path))


def k1_plus(log_probs: chex.Array, ref_log_probs: chex.Array, mask: chex.Array) -> chex.Array:
    """The value of k1 with the gradient of k2 (straight-through): verl's "k1+". float [B, T] x2, bool [B, T]."""
    return _with_gradient_of_k2(k1(log_probs, ref_log_probs, mask), log_probs, ref_log_probs, mask)


def k3_plus(
    log_probs: chex.Array,
    ref_log_probs: chex.Array,
    mask: chex.Array,
    *,
    max_difference: float = 20.0,
    max_value: float = 10.0,
) -> chex.Array:
    """The value of k3_clamped with the unclamped gradient of k2: verl's "k3+". Arguments as in `k3_clamped`."""
    clamps = {"max_difference": max_difference, "max_value": max_value}
    value = k3_clamped(log_probs, ref_log_probs, mask, **clamps)
    return _with_gradient_of_k2(value, log_probs, ref_log_probs, mask)


def ratio_k1(
    log_probs: chex.Array, ref_log_probs: chex.Array, mask: chex.Array, *, old_log_probs: chex.Array
) -> chex.Array:
    """r k1 with r = exp(logp - old_logp) differentiated: unbiased value and gradient for samples of pi_old.

    Source: open-instruct's kl_estimator 3.

    Args:
      log_probs: float [B, T].
      ref_log_probs: float [B, T].
      mask: bool [B, T].
      old_log_probs: float [B, T].
    """
    ratio = jnp.exp(_difference(log_probs, old_log_probs, mask))
    return ratio * k1(log_probs, ref_log_probs, mask)


def ratio_k3(
    log_probs: chex.Array, ref_log_probs: chex.Array, mask: chex.Array, *, old_log_probs: chex.Array
) -> chex.Array:
    """r k3 with r = exp(logp - old_logp) differentiated: like `ratio_k1`, but never negative.

    Source: arXiv 2512.02556 (DeepSeek-V3.2); TRL's use_bias_correction_kl, on by default since 1.12.

    Args:
      log_probs: float [B, T].
      ref_log_probs: float [B, T].
      mask: bool [B, T].
      old_log_probs: float [B, T].
    """
    ratio = jnp.exp(_difference(log_probs, old_log_probs, mask))
    return ratio * k3(log_probs, ref_log_probs, mask)


def sequence_ratio_k3(
    log_probs: chex.Array, ref_log_probs: chex.Array, mask: chex.Array, *, old_log_probs: chex.Array
) -> chex.Array:
    """s_i k3 with the row's s_i = exp(mean_t(logp - old_logp)) differentiated: TRL 1.16 with the sequence ratio.

    This is not a bias correction: the row's score enters with weight 1 / n_i, so the expected gradient is that of k3
    plus 1 / n_i of what ratio_k3 adds to it.

    Args:
      log_probs: float [B, T].
      ref_log_probs: float [B, T].
      mask: bool [B, T].
      old_log_probs: float [B, T].
    """
    ratio = jnp.exp(row_means(_difference(log_probs, old_log_probs, mask), mask))
    return ratio[:, None] * k3(log_probs, ref_log_probs, mask)


def on_policy_k3_clamped(
    log_probs: chex.Array,
    ref_log_probs: chex.Array,
    mask: chex.Array,
    *,
    max_difference: float = 20.0,
    max_value: float = 10.0,
) -> chex.Array:
    """NeMo-RL's k3: weighted by an on-policy ratio of value 1 whose gradient is the score.

        min(r k3, max_value), r = exp(logp - sg(logp))

    If the difference is clamped (to +-max_difference), the weight is stopped too and the gradient is 0. Source: arXiv
    2506.09477.

    Args:
      log_probs: float [B, T].
      ref_log_probs: float [B, T].
      mask: bool [B, T].
      max_difference: in nats, as in `k3_clamped`.
      max_value: in nats, applied after the weight.
    """
    difference = _difference(log_probs, ref_log_probs, mask)
    clamped = jnp.clip(difference, -max_difference, max_difference)
    ratio = jnp.exp(_difference(log_probs, log_probs, mask))
    ratio = jnp.where(difference == clamped, ratio, jax.lax.stop_gradient(ratio))
    return jnp.minimum(ratio * (jnp.expm1(-clamped) + clamped), max_value)
