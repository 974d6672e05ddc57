"""Per-token estimators [B, T] of KL(pi || pi_ref) from samples of pi (Schulman, "Approximating KL divergence").

As a term of a loss they differ by more than their values: E[grad k1] = 0, E[grad k2] = grad KL(pi || ref) and
E[grad k3] = grad KL(ref || pi). Use k1 in the reward, k2 for the reverse-KL gradient, k3 for the published GRPO.
No value is clamped here.
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.masked import zero_masked


def _difference(log_probs: chex.Array, ref_log_probs: chex.Array, mask: chex.Array) -> chex.Array:
    chex.assert_rank(mask, 2)
    chex.assert_type([log_probs, ref_log_probs], float)
    chex.assert_equal_shape([log_probs, ref_log_probs, mask])
    # The reference is a constant: masked before any exp, and stopped where it enters.
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
