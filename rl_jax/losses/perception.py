"""PAPO's terms: how much a policy's answer depends on what its prompt shows. Per token, float [B, T].

Source: arXiv 2507.06448; signs, coefficients and the form of the KL are those of MikeWangWZHL/PAPO.
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked
from rl_jax.core.types import TokenScores


def perception_kl(
    log_probs: chex.Array,
    corrupted_log_probs: chex.Array,
    mask: chex.Array,
    *,
    limit: float = 20.0,
    most: float = 10.0,
) -> chex.Array:
    """min(exp(-d) + d - 1, most), d = logp - logp given the corrupted prompt: 0 if what was hidden does not matter.

    Its mean over the policy's samples is KL(pi || pi after the corrupted prompt), and its slope is at most 1 where the
    prompt helps. The released code's form (compute_kl, low_var_kl), in which -d has the place of d.

    Args:
      log_probs: float [B, T], differentiated.
      corrupted_log_probs: float [B, T], of the same tokens after the corrupted prompt; a constant.
      mask: bool [B, T].
      limit: d is clamped to +- this, and a token beyond it has no gradient.
      most: a token above it has no gradient: what is maximised stays bounded.
    """
    chex.assert_equal_shape([log_probs, corrupted_log_probs, mask])
    gap = zero_masked(log_probs, mask) - jax.lax.stop_gradient(zero_masked(corrupted_log_probs, mask))
    gap = jnp.clip(gap, -limit, limit)
    return jnp.minimum(jnp.expm1(-gap) + gap, most)


def perception_terms(
    scores: TokenScores,
    corrupted: TokenScores,
    mask: chex.Array,
    *,
    kl_coef: float | chex.Array,
    entropy_coef: float | chex.Array = 0.0,
    corrupted_entropy_coef: float | chex.Array = 0.0,
) -> chex.Array:
    """-kl_coef KL + entropy_coef H + corrupted_entropy_coef H': the KL is maximised, both entropies are held down.

    The double entropy keeps the KL from growing by answers that are noise. H and H' are the exact entropies; the code
    has the mean of -logp, and a gradient of H' only with RECOMPUTE_AUG_LOG_PROBS, which is off there.

    Args:
      scores: of the policy after the prompt, float [B, T] each, differentiated.
      corrupted: of the policy after the corrupted prompt; its entropy is differentiated.
      mask: bool [B, T].
      kl_coef: gamma.
      entropy_coef: eta_1.
      corrupted_entropy_coef: eta_2.
    """
    gained = kl_coef * perception_kl(scores.log_probs, corrupted.log_probs, mask)
    spread = entropy_coef * zero_masked(scores.entropy, mask)
    return spread + corrupted_entropy_coef * zero_masked(corrupted.entropy, mask) - gained
