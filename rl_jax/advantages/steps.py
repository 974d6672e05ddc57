"""Rewards and values of environment steps [B, T] -> (advantages, returns), both [B, T]. A config names one of these.

A row is T steps of one environment and may span several episodes. An episode ends `terminated`, after which there is no
value, or `truncated`, or with the row. After the last two comes V', the value of the state that the step has led to
(not of the state that the next episode starts from). Uses the same recursions as the token estimators, and equals
advantages.tokens if a row is one episode (tests/advantages/test_steps.py).
"""

import chex
import jax.numpy as jnp

from rl_jax.advantages.recursion import backward_sums, lambda_advantages


def gae(
    rewards: chex.Array,
    values: chex.Array,
    next_values: chex.Array,
    terminated: chex.Array,
    truncated: chex.Array,
    *,
    discount: float | chex.Array = 0.99,
    lam: float | chex.Array = 0.95,
) -> tuple[chex.Array, chex.Array]:
    """GAE within an episode; the returns are A + V.

        A_t = delta_t + gamma lambda A_{t+1}, delta_t = r_t + gamma V'_t - V_t

    Source: arXiv 1506.02438 eq. 16. brax's differs if lambda < 1: its A carries gamma, not gamma lambda, after the
    first step.

    Args:
      rewards: float [B, T].
      values: float [B, T], V.
      next_values: float [B, T], V'.
      terminated: bool [B, T].
      truncated: bool [B, T].
      discount: gamma, float or float [].
      lam: lambda, float or float [].
    """
    discounts, decays = _factors(rewards, values, next_values, terminated, truncated, discount, lam)
    advantages = lambda_advantages(rewards, values, next_values, discounts=discounts, decays=decays)
    return advantages, advantages + values


def reward_to_go(
    rewards: chex.Array,
    values: chex.Array,
    next_values: chex.Array,
    terminated: chex.Array,
    truncated: chex.Array,
    *,
    discount: float | chex.Array = 0.99,
) -> tuple[chex.Array, chex.Array]:
    """REINFORCE: A_t = G_t = sum_{k >= t} gamma^{k-t} r_k to the end of the episode, no baseline; the returns are G.

    Arguments as in `gae`. An episode cut off by its limit or by the end of the row is continued with V'.
    """
    _, returns = gae(rewards, values, next_values, terminated, truncated, discount=discount, lam=1.0)
    return returns, returns


def vtrace(
    rewards: chex.Array,
    values: chex.Array,
    next_values: chex.Array,
    terminated: chex.Array,
    truncated: chex.Array,
    *,
    log_probs: chex.Array,
    behavior_log_probs: chex.Array,
    discount: float | chex.Array = 0.99,
    lam: float | chex.Array = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> tuple[chex.Array, chex.Array]:
    """V-trace: off-policy advantages, and the value targets v_t = V_t + e_t.

        A_t = min(rho_t, clip_pg_rho) (r_t + gamma v_{t+1} - V_t)
        e_t = min(rho_t, clip_rho) (r_t + gamma V'_t - V_t) + gamma lambda min(rho_t, clip_c) e_{t+1}

    e and v of the next step are used within an episode only: after its last step v_{t+1} is V'. Source: arXiv
    1802.01561 eq. 1 and section 4.2.

    Args:
      rewards: float [B, T].
      values: float [B, T], V.
      next_values: float [B, T], V'.
      terminated: bool [B, T].
      truncated: bool [B, T].
      log_probs: float [B, T], of the learner. rho = exp(log_probs - behavior_log_probs).
      behavior_log_probs: float [B, T], of the (stale) actor.
      discount: gamma, float or float [].
      lam: lambda, float or float [].
      clip_rho: bound of rho in the targets.
      clip_c: bound of rho in the trace.
      clip_pg_rho: bound of rho in the advantages.

    Returns:
      (A, v), float [B, T] each.
    """
    discounts, decays = _factors(rewards, values, next_values, terminated, truncated, discount, lam)
    chex.assert_equal_shape([values, log_probs, behavior_log_probs])
    rho = jnp.exp(log_probs - behavior_log_probs)
    errors = backward_sums(
        jnp.minimum(rho, clip_rho) * (rewards + discounts * next_values - values), decays * jnp.minimum(rho, clip_c)
    )
    following = jnp.pad(errors[:, 1:], ((0, 0), (0, 1)))
    # V' + e of the next step is v of the next step, whose V is V'; e is not carried across episodes.
    corrected = rewards + discounts * (next_values + jnp.where(terminated | truncated, 0.0, following))
    return jnp.minimum(rho, clip_pg_rho) * (corrected - values), values + errors


def _factors(rewards, values, next_values, terminated, truncated, discount, lam) -> tuple[chex.Array, chex.Array]:
    """(gamma, and 0 if the step terminated; gamma lambda, and 0 if the step is the last of its episode)."""
    chex.assert_rank(rewards, 2)
    chex.assert_equal_shape([rewards, values, next_values, terminated, truncated])
    chex.assert_type([rewards, values, next_values, terminated, truncated], [float, float, float, bool, bool])
    discount = jnp.asarray(discount, rewards.dtype)
    discounts = jnp.where(terminated, 0.0, discount)
    return discounts, jnp.where(terminated | truncated, 0.0, discount * jnp.asarray(lam, rewards.dtype))
