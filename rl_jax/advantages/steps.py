"""Rewards and values of environment steps [B, T] -> (advantages, returns), both [B, T]. A config names one of these.

A row is T steps of one environment, through as many episodes as there were: an episode ends `terminated`, after which
nothing follows, or `truncated`, or with the row; after both of these V' follows, the value of the state that the step
has led to (not of the one that the next episode starts from). Built on the recursions that tokens use, and equal to
advantages.tokens where a row is one episode (tests/advantages/test_steps.py).
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
    """GAE: A_t = delta_t + gamma lambda A_{t+1} within an episode, delta_t = r_t + gamma V'_t - V_t; returns A + V.

    rewards, values, next_values: float [B, T], V' = next_values. terminated, truncated: bool [B, T].
    discount, lam: gamma, lambda; float or float []. Source: arXiv 1506.02438 eq. 16. brax's is another where
    lambda < 1: its A carries gamma, not gamma lambda, after the first step.
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

    Arguments as of `gae`. An episode that was cut off, by its limit or by the end of the row, goes on with V'.
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
    """V-trace: A_t = min(rho_t, clip_pg_rho) (r_t + gamma v_{t+1} - V_t), and the targets v_t = V_t + e_t,

        e_t = min(rho_t, clip_rho) (r_t + gamma V'_t - V_t) + gamma lambda min(rho_t, clip_c) e_{t+1},

    e and v of the next step within an episode only: behind its last step v_{t+1} is V'.
    Arguments as of `gae`. log_probs, behavior_log_probs: float [B, T] of the learner and of the (stale) actor,
    rho = exp(log_probs - behavior_log_probs). Returns (A, v). Source: arXiv 1802.01561 eq. 1 and section 4.2.
    """
    discounts, decays = _factors(rewards, values, next_values, terminated, truncated, discount, lam)
    chex.assert_equal_shape([values, log_probs, behavior_log_probs])
    rho = jnp.exp(log_probs - behavior_log_probs)
    errors = backward_sums(
        jnp.minimum(rho, clip_rho) * (rewards + discounts * next_values - values), decays * jnp.minimum(rho, clip_c)
    )
    following = jnp.pad(errors[:, 1:], ((0, 0), (0, 1)))
    # V' + e of the next step is v of the next step, whose V is V'; none is carried out of an episode.
    corrected = rewards + discounts * (next_values + jnp.where(terminated | truncated, 0.0, following))
    return jnp.minimum(rho, clip_pg_rho) * (corrected - values), values + errors


def _factors(rewards, values, next_values, terminated, truncated, discount, lam) -> tuple[chex.Array, chex.Array]:
    """(gamma, and 0 where the step has terminated; gamma lambda, and 0 where it is the last of its episode)."""
    chex.assert_rank(rewards, 2)
    chex.assert_equal_shape([rewards, values, next_values, terminated, truncated])
    chex.assert_type([rewards, values, next_values, terminated, truncated], [float, float, float, bool, bool])
    discount = jnp.asarray(discount, rewards.dtype)
    discounts = jnp.where(terminated, 0.0, discount)
    return discounts, jnp.where(terminated | truncated, 0.0, discount * jnp.asarray(lam, rewards.dtype))
