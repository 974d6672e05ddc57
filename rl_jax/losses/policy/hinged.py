"""REINFORCE with a constraint on the KL to the old policy.

Named in a config by its import path, "rl_jax.losses.policy.hinged:hinged".
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import masked_mean, zero_masked
from rl_jax.losses.policy.base import Surrogate, assert_tokens, log_ratio


def hinged(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    delta: float = 1e-4,
    hinge: float = 1e3,
) -> Surrogate:
    """DisCO's constrained step: no clip; beyond a trust region the KL pulls back, inside it nothing does.

        l = -A logp + sg(hinge [D - delta]+) d,   d = old_logp - logp,   D = mean of d over the tokens

    The second term has the gradient of hinge / 2 ([D - delta]+)^2: for aggregate seq_mean_token_mean it is weighted so
    that its sum is c D, a mean over tokens. D is that of the rows at hand: with micro-batches each has its own hinge,
    as in the code.
    Source: arXiv 2505.12366; Optimization-AI/DisCO with ppo_kl_type "kl", and its delta and beta.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].
      delta: radius of the trust region, in nats per token.
      hinge: weight of the excess; beta in the paper.

    Returns:
      Surrogate; nothing is ever clipped.
    """
    assert_tokens(mask, log_probs, old_log_probs, advantages)
    advantages = jax.lax.stop_gradient(zero_masked(advantages, mask))
    log_ratios = log_ratio(log_probs, old_log_probs, mask)
    divergence = masked_mean(jax.lax.stop_gradient(-log_ratios), mask).value()
    lengths = jnp.sum(mask, axis=1, keepdims=True)
    tokens, rows = jnp.maximum(jnp.sum(lengths), 1), jnp.sum(lengths > 0)
    weight = hinge * jnp.maximum(divergence - delta, 0.0) * (lengths * rows / tokens).astype(log_ratios.dtype)
    loss = -advantages * zero_masked(log_probs, mask) - weight * log_ratios
    never = jnp.zeros_like(mask)
    return Surrogate(zero_masked(loss, mask), jnp.exp(jax.lax.stop_gradient(log_ratios)), never, never)
