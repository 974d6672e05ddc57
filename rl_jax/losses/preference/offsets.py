"""Slot 5: what is added to each response's score after beta: (present [N, K]) -> float [N, K], without gradient.

A margin of the pair is an offset on one side: the first response is the chosen one.
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked


def none(present: chex.Array) -> chex.Array:
    """o = 0. present: bool [N, K] -> float [N, K]."""
    chex.assert_rank(present, 2)
    return jnp.zeros(present.shape)


def target_margin(present: chex.Array, *, margin: float = 0.5) -> chex.Array:
    """SimPO: -margin on the chosen response, so that it has to win by that much.

    Source: arXiv 2405.14734.

    Args:
      present: bool [N, K].
      margin: gamma, not divided by beta (the published defaults are beta 2, gamma / beta 0.25).

    Returns:
      float [N, K].
    """
    chex.assert_rank(present, 2)
    return jnp.zeros(present.shape).at[:, 0].set(-margin)


def length(present: chex.Array, *, lengths: chex.Array, alpha: float = 0.05) -> chex.Array:
    """R-DPO: alpha |y|, the margin beta h + alpha (|y_w| - |y_l|): a longer winner is pushed less.

    The plus follows from the penalised reward r - alpha |y|; SimPO's table prints a minus. Source: arXiv 2403.19159.

    Args:
      present: bool [N, K].
      lengths: float [N, K], in tokens.
      alpha: reward cost per token; 0 is DPO.

    Returns:
      float [N, K].
    """
    chex.assert_rank(present, 2)
    chex.assert_equal_shape([present, lengths])
    return alpha * lengths


def reward_gap(present: chex.Array, *, rewards: chex.Array, eta: float = 1.0) -> chex.Array:
    """-eta R: the pair's margin becomes x - eta (R_1 - R_2).

    With links.square at target 0 it is REBEL (arXiv 2404.16767), and online IPO if R is the win probability and eta 1 /
    beta (arXiv 2503.08942). With links.logistic it is a margin from the data; ODPO's is log_reward_gap.

    Args:
      present: bool [N, K].
      rewards: float [N, K], R.
      eta: per unit of reward.

    Returns:
      float [N, K].
    """
    chex.assert_rank(present, 2)
    chex.assert_equal_shape([present, rewards])
    return -eta * jax.lax.stop_gradient(rewards)


def log_reward_gap(present: chex.Array, *, rewards: chex.Array, alpha: float = 1.0) -> chex.Array:
    """ODPO: -alpha log(R_1 - R_2) on the chosen response, which has to win by more if it is much better.

    With rewards 1 and 0, a pair that is only ordered, it is DPO. A pair of equal rewards has no gradient.
    Source: arXiv 2402.10571, the official code.

    Args:
      present: bool [N, K].
      rewards: float [N, K], K >= 2, the best first.
      alpha: 0 is DPO.

    Returns:
      float [N, K].
    """
    chex.assert_rank(present, 2)
    chex.assert_equal_shape([present, rewards])
    chex.assert_axis_dimension_gteq(present, 1, 2)
    rewards = zero_masked(jax.lax.stop_gradient(rewards), present)
    gap = jnp.maximum(rewards[:, 0] - rewards[:, 1], jnp.finfo(rewards.dtype).tiny)
    return jnp.zeros(present.shape).at[:, 0].set(-alpha * jnp.log(gap))


def other_objectives(present: chex.Array, *, other_rewards: chex.Array, weight: float = 0.5) -> chex.Array:
    """MODPO: -R_rest / weight, R_rest = sum_j w_j R_j over the other objectives.

    Weight 1 without other objectives is DPO. Source: arXiv 2310.03708.

    Args:
      present: bool [N, K].
      other_rewards: float [N, K], the weighted sum.
      weight: of the objective that is trained, the same as in scales.objective_share.

    Returns:
      float [N, K].
    """
    chex.assert_rank(present, 2)
    chex.assert_equal_shape([present, other_rewards])
    return -jax.lax.stop_gradient(other_rewards) / weight


def given(present: chex.Array, *, offsets: chex.Array) -> chex.Array:
    """Offsets from the data. present: bool [N, K], offsets: float [N, K] -> float [N, K]."""
    chex.assert_rank(present, 2)
    chex.assert_equal_shape([present, offsets])
    return jax.lax.stop_gradient(offsets)
