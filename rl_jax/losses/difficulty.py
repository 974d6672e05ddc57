"""KLs that are weighted by how hard the prompt is: APO's and CLPO's.

Named in a config by their import path, "rl_jax.losses.difficulty:shaped_k3".
"""

import math
from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked
from rl_jax.losses.kl import k3


def shaped_k3(
    log_probs: chex.Array,
    ref_log_probs: chex.Array,
    mask: chex.Array,
    *,
    advantages: chex.Array,
    group_size: int,
) -> chex.Array:
    """Difficulty-adaptive divergence shaping (DADS): the KL of right answers counts less on hard prompts.

        w k3,   w = 1 - exp(-e p) on answers with A > 0, 1 elsewhere;   p the group's share of right answers

    p is read from the advantage: with rewards of 0 and 1, GRPO's of a right answer is A = sqrt((1 - p) / p (G - 1) / G)
    (std with ddof 1). A group without a right answer, or with right ones only, has no A > 0 and w = 1.
    Source: arXiv 2506.21655; calculate_kl_weight of Indolent-Kawhi/View-R1 (e is Euler's number).

    Args:
      log_probs: float [B, T], differentiated.
      ref_log_probs: float [B, T], data.
      mask: bool [B, T].
      advantages: float [B, T], data; of advantages.group_relative or rl_jax.advantages.complexity.apo.
      group_size: G, above 1.

    Returns:
      float [B, T].
    """
    chex.assert_equal_shape([log_probs, advantages, mask])
    advantages = jax.lax.stop_gradient(zero_masked(advantages, mask))
    share = 1.0 / (1.0 + jnp.square(advantages) * (group_size / (group_size - 1)))
    weight = jnp.where(advantages > 0, -jnp.expm1(-math.e * share), 1.0)
    return weight * k3(log_probs, ref_log_probs, mask)


def bucketed_k3(
    log_probs: chex.Array,
    ref_log_probs: chex.Array,
    mask: chex.Array,
    *,
    advantages: chex.Array,
    group_size: int,
    hard: float = 0.3,
    medium: float = 0.7,
    weights: Sequence[float] = (0.5, 1.0, 1.0),
) -> chex.Array:
    """CLPO's difficulty-aware KL: w k3, w by whether the prompt is hard, medium or easy.

    The share p of right answers is read from the advantage, as in `shaped_k3`, here from both signs: with rewards of 0
    and 1, A = sqrt((1 - p) / p (G - 1) / G) of right answers and -sqrt(p / (1 - p) (G - 1) / G) of wrong ones. A group
    without a spread has A = 0 and w = 0: the code leaves it out of the batch.
    Source: arXiv 2509.25004; csuking/CLPO scripts/clpo_qwen3_8b.sh (.5 and 1) and verl/trainer/ppo/ray_trainer.py,
    which also calls each answer to a rewritten hard problem hard, whatever the share of right ones.

    Args:
      log_probs: float [B, T], differentiated.
      ref_log_probs: float [B, T], data.
      mask: bool [B, T].
      advantages: float [B, T], data; of advantages.group_relative with ddof=1.
      group_size: G, above 1.
      hard: p up to this is hard.
      medium: p above `hard`, up to this, is medium.
      weights: w of hard, medium and easy prompts.

    Returns:
      float [B, T].
    """
    chex.assert_equal_shape([log_probs, advantages, mask])
    advantages = jax.lax.stop_gradient(zero_masked(advantages, mask))
    odds = jnp.square(advantages) * (group_size / (group_size - 1))
    share = jnp.where(advantages > 0, 1.0 / (1.0 + odds), odds / (1.0 + odds))
    slack = 0.05 / group_size  # p is a multiple of 1 / G, and rounding must not move it over a bound
    easy = jnp.where(share > medium + slack, weights[2], weights[1])
    weight = jnp.where(share > hard + slack, easy, weights[0])
    weight = jnp.where(odds > 0, weight, 0.0)
    return weight * k3(log_probs, ref_log_probs, mask)
