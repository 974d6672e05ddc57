"""Rewards of a solution's steps and tokens: bounded or signed step rewards, steps on their tokens, PRIME's.

Steps are float [N, S] with a mask bool [N, S] of those that a solution has, the first ones of a row; tokens are float
[B, C]. `at_tokens` gives what credit.assign(token_rewards=) and Rollout.token_rewards take. The judges of a run
(experiments.parts.judges) call these; advantages.prime takes PRIME's token rewards.
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked

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
    return jnp.where(remaining > 1, rewards - following, 0.0)


def signed(rewards: chex.Array, mask: chex.Array, *, threshold: float = 0.5) -> chex.Array:
    """+1 for a step above the threshold, -1 for another one: fine-grained feedback, whose classes decide the sign.

    The weight of the judge is the paper's reward of a segment (0.3 for relevance, 0.5 for facts). Source: arXiv
    2306.01693 and its code (argmax over two classes).

    Args:
      rewards: float [N, S], the probability that a step is right.
      mask: bool [N, S].
      threshold: at which the two classes are equally likely.
    """
    _check(rewards, mask)
    return jnp.where(mask, jnp.where(rewards > threshold, 1.0, -1.0), 0.0).astype(rewards.dtype)


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


def _check(x: chex.Array, mask: chex.Array) -> None:
    chex.assert_rank([x, mask], 2)
    chex.assert_equal_shape([x, mask])
    chex.assert_type([x, mask], [float, bool])
