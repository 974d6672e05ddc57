"""Rewards [B] -> advantages [B], group by group. The G samples of one prompt are neighbours: B = prompts x G.

Papers and frameworks disagree on ddof, epsilon and the baseline (rewards 1,0,0,0 give a first advantage of 1.5, 1.0,
0.75 or 3 depending on whom one asks), so every convention is a keyword or a function of its own.
"""

import chex
import jax.numpy as jnp

from rl_jax.masked import zero_masked


def _grouped(rewards: chex.Array, group_size: int) -> chex.Array:
    chex.assert_rank(rewards, 1)
    chex.assert_type(rewards, float)  # integer rewards would truncate fractional baselines
    if group_size < 1 or rewards.shape[0] % group_size:
        raise ValueError(f"{rewards.shape[0]} rewards do not divide into groups of group_size={group_size}")
    return rewards.reshape(-1, group_size)


def _centered(groups: chex.Array) -> chex.Array:
    # Seen from the first sample: equal rewards give exactly 0, and not the rounding of their float32 mean.
    shifted = groups - groups[:, :1]
    return shifted - jnp.mean(shifted, axis=1, keepdims=True)


def group_std(rewards: chex.Array, *, group_size: int, ddof: int = 1) -> chex.Array:
    """Standard deviation of each group: sqrt(sum (R - mean)^2 / (G - ddof)). float [B] -> float [B / G].

    Raises ValueError where the groups do not divide B or G <= ddof leaves nothing to divide by.
    """
    groups = _grouped(rewards, group_size)
    if group_size <= ddof:
        raise ValueError(f"the std of a group of {group_size} with ddof={ddof} is not defined; use group_centered")
    # Two passes: E[x^2] - E[x]^2 leaves a residue in float32 that turns equal rewards into +-1000 (NeMo-RL PR 4161).
    centered = _centered(groups)
    return jnp.sqrt(jnp.sum(jnp.square(centered), axis=1) / (group_size - ddof))


def group_relative(
    rewards: chex.Array, *, group_size: int, ddof: int = 1, eps: float = 1e-6, relative_tolerance: float = 1e-6
) -> chex.Array:
    """GRPO: A_i = (R_i - mean_g) / (std_g + eps).

    rewards: float [B]. group_size: G. ddof: 1 is torch.std (verl, TRL, DeepSeekMath), 0 is numpy's (the R1 text).
    eps: added to the std; 1e-6 verl, 1e-4 TRL, 1e-8 understand-r1-zero. relative_tolerance: a group whose std is below
    this share of its largest |reward| counts as all-equal (its spread is rounding) and gets exactly 0.
    Returns float [B]. Raises ValueError for a group size that does not divide B or is not above ddof.
    Source: arXiv 2402.03300, eq. of section 4.1.2.
    """
    groups = _grouped(rewards, group_size)
    std = group_std(rewards, group_size=group_size, ddof=ddof)[:, None]
    centered = _centered(groups)
    spread = std > relative_tolerance * jnp.max(jnp.abs(groups), axis=1, keepdims=True)
    return jnp.where(spread, centered / (std + eps), 0.0).reshape(-1)


def group_centered(rewards: chex.Array, *, group_size: int) -> chex.Array:
    """Dr. GRPO: A_i = R_i - mean_g, no division. float [B] -> float [B]. Source: arXiv 2503.20783."""
    return _centered(_grouped(rewards, group_size)).reshape(-1)


def leave_one_out(rewards: chex.Array, *, group_size: int) -> chex.Array:
    """RLOO: A_i = R_i - mean of the other G - 1 rewards = G / (G - 1) (R_i - mean_g). float [B] -> float [B].

    Raises ValueError for a group of one. Source: arXiv 2402.14740.
    """
    groups = _grouped(rewards, group_size)
    if group_size < 2:
        raise ValueError("leave_one_out needs group_size >= 2: a group of one has no others")
    return (_centered(groups) * (group_size / (group_size - 1))).reshape(-1)


def group_mean_batch_std(
    rewards: chex.Array,
    *,
    group_size: int,
    ddof: int = 1,
    eps: float = 1e-6,
    relative_tolerance: float = 1e-6,
) -> chex.Array:
    """Lite-PPO: A_i = (R_i - mean_g) / (std of all B rewards + eps). Batch-coupled: give it the global batch.

    float [B] -> float [B]. ddof, eps and relative_tolerance as in group_relative, applied to the batch; the std
    is that of R (TRL scale_rewards="batch"). Raises ValueError where the groups do not divide B or B <= ddof.
    Source: arXiv 2508.08221.
    """
    centered = group_centered(rewards, group_size=group_size)
    batch = rewards.shape[0]
    std = group_std(rewards, group_size=batch, ddof=ddof)[0]
    spread = std > relative_tolerance * jnp.max(jnp.abs(rewards))
    return jnp.where(spread, centered / (std + eps), 0.0)


def to_tokens(advantages: chex.Array, completion_mask: chex.Array) -> chex.Array:
    """The same advantage on every completion token, 0 elsewhere. float [B], bool [B, T] -> float [B, T]."""
    chex.assert_rank([advantages, completion_mask], [1, 2])
    return zero_masked(jnp.broadcast_to(advantages[:, None], completion_mask.shape), completion_mask)
