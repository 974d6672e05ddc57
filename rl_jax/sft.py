"""Supervised fine-tuning: the mean negative log-prob of the completion tokens. The warm start of every RL run here."""

import chex

from rl_jax.core.masked import Mean, masked_mean
from rl_jax.core.types import Metrics, TokenScores
from rl_jax.losses import aggregate as aggregation


def loss(scores: TokenScores, completion_mask: chex.Array, *, aggregate=aggregation.token_mean) -> tuple[Mean, Metrics]:
    """-logp of every completion token; prompts are left out.

    Args:
      scores: log_probs and entropy, float [B, C].
      completion_mask: bool [B, C].
      aggregate: (per_token, mask) -> Mean.
    """
    chex.assert_equal_shape([scores.log_probs, completion_mask])
    metrics = {"entropy": masked_mean(scores.entropy, completion_mask)}
    return aggregate(-scores.log_probs, completion_mask), metrics
