"""Advantages from comparisons with another sample of the group: rewards [B] -> [B].

Named in a config by their import path, "rl_jax.advantages.paired:brpo".
"""

import chex
import jax.numpy as jnp

from rl_jax.advantages.groups import grouped


def brpo(rewards: chex.Array, *, group_size: int, most: float = 1.0) -> chex.Array:
    """BRPO: A = 2 w - 1, w the share of comparisons that a row wins against a temporary reference of its own group.

    The reference, a random row of the group, has w = 1/2 and so no advantage. With a judge to whom all rows are equal
    E[A] = 0 without a mean or a std. Source: arXiv 2506.00103.

    Args:
      rewards: float [B], w in [0, 1] (the judge `pairwise` with against="bootstrap").
      group_size: G.
      most: a group whose reference wins, or loses, more than this share of the comparisons teaches nothing. 1: all
        groups teach. The paper filters references that are too good or too bad; its bounds could not be read.

    Returns:
      float [B].

    Raises:
      ValueError: if B is not a multiple of group_size, or most is not in (1/2, 1].
    """
    if not 0.5 < most <= 1.0:
        raise ValueError(f"brpo: most={most} must be above 1/2 and at most 1")
    signed = 2.0 * grouped(rewards, group_size) - 1.0
    share = 0.5 + 0.5 * jnp.sum(signed, axis=1, keepdims=True) / max(group_size - 1, 1)
    kept = (share <= most) & (share >= 1.0 - most)
    return jnp.where(kept, signed, 0.0).reshape(-1)
