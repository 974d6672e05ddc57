"""Rewards of a solution's steps and tokens: bounded step rewards, steps on their tokens, PRIME's.

Steps are float [N, S] with a mask bool [N, S] of those that a solution has, the first ones of a row; tokens are float
[B, C]. `at_tokens` gives what credit.assign(token_rewards=) and Rollout.token_rewards take. For loops of your own: no
program calls these.
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.recursion import backward_sums
from rl_jax.core.masked import last_of, masked_whiten, row_means, zero_masked

# --- Step rewards that more steps cannot increase: float [N, S] -> float [N, S] --------------------------------------


def clip_steps(rewards: chex.Array, mask: chex.Array, *, threshold: float) -> chex.Array:
    """Clip: min(r_s - threshold, 0), so that no number of steps adds up to more than 0.

    Source: arXiv 2410.15115.

    Args:
      rewards: float [N, S].
      mask: bool [N, S].
      threshold: eta, in the reward's units.
    """
    _check(rewards, mask)
    return zero_masked(jnp.minimum(rewards - threshold, 0.0), mask)


def delta_steps(rewards: chex.Array, mask: chex.Array) -> chex.Array:
    """Delta: r_s - r_{s+1} for s < S - 1, r_s for s = S - 1, and 0 for the last step S.

    The rewards from step s on telescope to r_s. The paper clips first, then takes the deltas. Source: arXiv 2410.15115.

    Args:
      rewards: float [N, S].
      mask: bool [N, S].
    """
    _check(rewards, mask)
    rewards = zero_masked(rewards, mask)
    blank = jnp.zeros_like(rewards[:, :1])
    remaining = jnp.cumsum(mask[:, ::-1], axis=1)[:, ::-1]  # 1 at the last step
    following = jnp.where(remaining > 2, jnp.concatenate([rewards[:, 1:], blank], axis=1), 0.0)
    return jnp.where(mask & (remaining > 1), rewards - following, 0.0)


# --- On tokens -------------------------------------------------------------------------------------------------------


def at_tokens(rewards: chex.Array, mask: chex.Array, ends: chex.Array, *, completion_length: int) -> chex.Array:
    """Each step's reward on the last token of the step. Source: arXiv 2306.01693.

    Args:
      rewards: float [N, S].
      mask: bool [N, S].
      ends: int [N, S], the completion column of each step's last token. Rewards of two steps that end on one token are
        summed.
      completion_length: C.

    Returns:
      float [N, C], 0 on all other tokens.
    """
    _check(rewards, mask)
    chex.assert_equal_shape([rewards, ends])
    ends_here = jax.nn.one_hot(ends, completion_length, dtype=rewards.dtype)
    ends_here = jnp.where(mask[:, :, None], ends_here, 0.0)
    return jnp.sum(zero_masked(rewards, mask)[:, :, None] * ends_here, axis=1)


def prime_token_rewards(log_ratios: chex.Array, mask: chex.Array, *, normalize: bool = True) -> chex.Array:
    """PRIME's r_t = log phi_t - log ref_t, without beta.

    Source: arXiv 2502.01456, prime_norm = batch_norm of its code.

    Args:
      log_ratios: float [B, C] of the implicit reward model; data, without gradient.
      mask: bool [B, C].
      normalize: divide by max |sum_{u >= t} r_u| + 1e-6 over the whole batch, so that no return is above 1.

    Returns:
      float [B, C].
    """
    _check(log_ratios, mask)
    rewards = jax.lax.stop_gradient(zero_masked(log_ratios, mask))
    if not normalize:
        return rewards
    to_go = jnp.cumsum(rewards[:, ::-1], axis=1)
    return rewards / (jnp.max(jnp.abs(to_go)) + 1e-6)


def prime_advantages(
    token_rewards: chex.Array,
    outcomes: chex.Array,
    mask: chex.Array,
    *,
    group_size: int,
    reward_discount: float = 1.0,
    outcome_discount: float = 1.0,
) -> chex.Array:
    """PRIME's advantages: leave-one-out in each source of reward, discounted sums to go, summed, whitened.

        r'_t = r_t G/(G - 1) - sum_j mean_j / (G - 1)       mean_j: of response j's own rewarded tokens
        A_t  = whiten( sum_{u >= t} gamma_r^(u - t) r'_u + gamma_o^(T - t) o' )

    Source: arXiv 2502.01456, compute_rloo_returns of its code.

    Args:
      token_rewards: float [B, C] (prime_token_rewards).
      outcomes: float [B], of the verifier, on the last token.
      mask: bool [B, C].
      group_size: G, rows per prompt; the rows of a group are neighbours.
      reward_discount: gamma_r, per token.
      outcome_discount: gamma_o, per token.

    Returns:
      float [B, C], whitened with n - 1 and eps 1e-8 as in verl.

    Raises:
      ValueError: for groups of one.
    """
    _check(token_rewards, mask)
    if group_size < 2:
        raise ValueError(f"leaving one out needs groups of at least 2, got group_size={group_size}")
    at_end = last_of(mask)
    on_tokens = jnp.where(at_end, jnp.broadcast_to(outcomes[:, None], mask.shape), 0.0)
    total = jnp.zeros(mask.shape, token_rewards.dtype)
    sources = ((token_rewards, mask, reward_discount), (on_tokens, at_end, outcome_discount))
    for rewards, where, discount in sources:
        means = row_means(rewards, where).reshape(-1, group_size)
        baseline = jnp.repeat(jnp.sum(means, axis=1), group_size) / (group_size - 1)
        centred = rewards * (group_size / (group_size - 1)) - jnp.broadcast_to(baseline[:, None], mask.shape)
        centred = zero_masked(centred, where)
        total += backward_sums(centred, jnp.full_like(centred, discount))
    return masked_whiten(total, mask, ddof=1, eps=1e-8)


def _check(x: chex.Array, mask: chex.Array) -> None:
    chex.assert_rank([x, mask], 2)
    chex.assert_equal_shape([x, mask])
    chex.assert_type([x, mask], [float, bool])
