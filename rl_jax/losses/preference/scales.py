"""The scale of slot 5: what a method turns beta into: (beta) -> float [] or [N]."""

import chex
import jax
import jax.numpy as jnp


def constant(beta: float) -> float:
    """beta itself."""
    return beta


def batch_adapted(beta: float, *, batch_beta: chex.Array) -> chex.Array:
    """beta-DPO: beta from the whole batch's margins (batch_stats.beta_statistics), which replaces beta.

    Source: arXiv 2407.08639.

    Args:
      beta: unused.
      batch_beta: float [N], the same on each row.

    Returns:
      float [N], without gradient.
    """
    chex.assert_rank(batch_beta, 1)
    return jax.lax.stop_gradient(batch_beta)


def reward_adapted(beta: float, *, rewards: chex.Array, weight: float = 0.5, rate: float = 0.5) -> chex.Array:
    """MM-DPO: beta (1 + weight (1 - exp(-rate delta))), delta = r_1 - r_2 >= 0: a clear pair counts more.

    Source: arXiv 2502.10391.

    Args:
      beta: the objective's.
      rewards: float [N, 2], best first (a negative delta counts as 0).
      weight: 0 is DPO; the scale stays below beta (1 + weight).
      rate: per unit of reward.

    Returns:
      float [N], without gradient.
    """
    chex.assert_rank(rewards, 2)
    chex.assert_axis_dimension(rewards, 1, 2)
    delta = jax.lax.stop_gradient(jax.nn.relu(rewards[:, 0] - rewards[:, 1]))
    return beta * (1.0 - weight * jnp.expm1(-rate * delta))


def objective_share(beta: float, *, weight: float = 0.5) -> float:
    """MODPO: beta / weight.

    offsets.other_objectives adds the other objectives, with the same weight. Source: arXiv 2310.03708.

    Args:
      beta: the objective's.
      weight: of the objective whose preferences are trained on, in (0, 1].

    Raises:
      ValueError: if weight is outside (0, 1].
    """
    if not 0.0 < weight <= 1.0:
        raise ValueError(f"objective_share: weight must be in (0, 1], got {weight}")
    return beta / weight
