"""Slot 5: what is added to each response's score behind beta: (present [N, K]) -> float [N, K], without gradient.

A margin of the pair is an offset of one side: the first response is the chosen one.
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
    """SimPO: -margin on the chosen response, so that it has to win by that much. present: bool [N, K] -> float [N, K].

    margin: gamma, not divided by beta (the published defaults are beta 2, gamma / beta 0.25). Source: arXiv 2405.14734.
    """
    chex.assert_rank(present, 2)
    return jnp.zeros(present.shape).at[:, 0].set(-margin)


def length(present: chex.Array, *, lengths: chex.Array, alpha: float = 0.05) -> chex.Array:
    """R-DPO: alpha |y|, the margin beta h + alpha (|y_w| - |y_l|): a longer winner is pushed less. -> float [N, K].

    present: bool [N, K]. lengths: float [N, K], in tokens. alpha: the reward a token costs; 0 is DPO. The plus follows
    from the penalised reward r - alpha |y|; SimPO's table prints a minus. Source: arXiv 2403.19159.
    """
    chex.assert_rank(present, 2)
    chex.assert_equal_shape([present, lengths])
    return alpha * lengths


def reward_gap(present: chex.Array, *, rewards: chex.Array, eta: float = 1.0) -> chex.Array:
    """-eta R: the pair's margin becomes x - eta (R_1 - R_2). present: bool [N, K], rewards: float [N, K] -> the same.

    With links.square at target 0: REBEL (arXiv 2404.16767), and online IPO where R is the win probability and eta
    1 / beta (arXiv 2503.08942). With links.logistic: a margin of the data; ODPO's is log_reward_gap.
    """
    chex.assert_rank(present, 2)
    chex.assert_equal_shape([present, rewards])
    return -eta * jax.lax.stop_gradient(rewards)


def log_reward_gap(present: chex.Array, *, rewards: chex.Array, alpha: float = 1.0) -> chex.Array:
    """ODPO: -alpha log(R_1 - R_2) on the chosen response: it has to win by more where it is much better. -> [N, K].

    With rewards 1 and 0, a pair that is only ordered, it is DPO; a pair of equal rewards teaches nothing.
    present: bool [N, K]. rewards: float [N, K], K >= 2, the best first. Source: arXiv 2402.10571, the official code.
    """
    chex.assert_rank(present, 2)
    chex.assert_equal_shape([present, rewards])
    chex.assert_axis_dimension_gteq(present, 1, 2)
    rewards = zero_masked(jax.lax.stop_gradient(rewards), present)
    gap = jnp.maximum(rewards[:, 0] - rewards[:, 1], jnp.finfo(rewards.dtype).tiny)
    return jnp.zeros(present.shape).at[:, 0].set(-alpha * jnp.log(gap))


def other_objectives(present: chex.Array, *, other_rewards: chex.Array, weight: float = 0.5) -> chex.Array:
    """MODPO: -R_rest / weight, R_rest = sum_j w_j R_j over the other objectives. -> float [N, K].

    present: bool [N, K]. other_rewards: float [N, K], the weighted sum. weight: of the objective that is trained, the
    same as in scales.objective_share. weight 1 without others is DPO. Source: arXiv 2310.03708.
    """
    chex.assert_rank(present, 2)
    chex.assert_equal_shape([present, other_rewards])
    return -jax.lax.stop_gradient(other_rewards) / weight


def given(present: chex.Array, *, offsets: chex.Array) -> chex.Array:
    """What the data says. present: bool [N, K], offsets: float [N, K] -> float [N, K]."""
    chex.assert_rank(present, 2)
    chex.assert_equal_shape([present, offsets])
    return jax.lax.stop_gradient(offsets)
