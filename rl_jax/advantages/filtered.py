"""Advantages [B] of whole completions, of which outliers are dropped.

Named in a config by their import path, "rl_jax.advantages.filtered:three_sigma".
"""

import chex
import jax.numpy as jnp

from rl_jax.advantages.outcome import batch_relative


def three_sigma(rewards: chex.Array, *, limit: float = 3.0, ddof: int = 1, eps: float = 1e-4) -> chex.Array:
    """StableReinforce's filter: standardised over the batch, and 0 beyond `limit` standard deviations.

        z = (R - mean) / (std + eps);   A = z if |z| <= limit else 0

    Batch-coupled: pass the global batch. Source: arXiv 2505.02835 (R1-Reward). Its code compares z with
    mean +- 3 std of the unstandardised rewards, and also drops |A| > 10; this is the paper's text.

    Args:
      rewards: float [B].
      limit: 3 in the paper.
      ddof: of the std.
      eps: beside the std.

    Returns:
      float [B].

    Raises:
      ValueError: if limit is not above 0.
    """
    if limit <= 0:
        raise ValueError(f"limit={limit} must be above 0: it is a number of standard deviations")
    scores = batch_relative(rewards, ddof=ddof, eps=eps)
    return jnp.where(jnp.abs(scores) <= limit, scores, 0.0)
