"""Advantages of groups that look at lengths: rewards [B] -> [B].

Named in a config by their import path, "rl_jax.advantages.complexity:apo".
"""

import math

import chex
import jax.numpy as jnp

from rl_jax.advantages.groups import group_relative, grouped


def apo(
    rewards: chex.Array,
    *,
    group_size: int,
    lengths: chex.Array,
    base: float = 1.00001,
    right: float = 1.0,
    eps: float = 1e-9,
) -> chex.Array:
    """APO's suboptimal-trajectory complexity regularisation (STCR): long wrong answers are pushed down harder.

        A_i (1 + w_i),   A_i GRPO's,   w_i = 1 - base^-(n_i - mean n of the right answers) if that is positive
        and i is wrong and the group has a right answer, else 0

    w is .5 at 69,315 tokens more than the right answers have, and tiny at usual lengths.
    Source: arXiv 2506.21655; Indolent-Kawhi/View-R1.

    Args:
      rewards: float [B].
      group_size: G.
      lengths: int [B], n in tokens.
      base: above 1.
      right: reward from which an answer counts as right.
      eps: added to the std.

    Returns:
      float [B].

    Raises:
      ValueError: if base is not above 1, B is not a multiple of group_size, or group_size is 1.
    """
    if base <= 1:
        raise ValueError(f"base={base} must be above 1")
    chex.assert_equal_shape([rewards, lengths])
    is_right = grouped(rewards, group_size) >= right
    tokens = lengths.reshape(is_right.shape).astype(rewards.dtype)
    count = jnp.sum(is_right, axis=1, keepdims=True)
    mean = jnp.sum(jnp.where(is_right, tokens, 0.0), axis=1, keepdims=True) / jnp.maximum(count, 1)
    excess = jnp.where(is_right | (count == 0), 0.0, jnp.maximum(tokens - mean, 0.0))
    weight = -jnp.expm1(-excess * math.log(base))
    advantages = group_relative(rewards, group_size=group_size, eps=eps).reshape(is_right.shape)
    return (advantages * (1.0 + weight)).reshape(-1)
