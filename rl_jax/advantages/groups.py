"""Rewards [B] -> advantages [B], group by group. The G samples of one prompt are adjacent rows: B = prompts x G.

Papers and frameworks disagree on ddof, epsilon and the baseline (for rewards 1,0,0,0 the first advantage is 1.5, 1.0,
0.75 or 3), so every convention is a keyword or a function of its own.
"""

import chex
import jax.numpy as jnp
import numpy as np

from rl_jax.core.masked import zero_masked


def grouped(rewards: chex.Array, group_size: int) -> chex.Array:
    """float [B] -> float [B / G, G]. Raises ValueError if B is not a multiple of group_size."""
    chex.assert_rank(rewards, 1)
    chex.assert_type(rewards, float)  # integer rewards would truncate fractional baselines
    if group_size < 1 or rewards.shape[0] % group_size:
        raise ValueError(f"{rewards.shape[0]} rewards do not divide into groups of group_size={group_size}")
    return rewards.reshape(-1, group_size)


def _centered(groups: chex.Array) -> chex.Array:
    # Relative to the first sample: equal rewards give exactly 0, not the rounding error of their float32 mean.
    shifted = groups - groups[:, :1]
    return shifted - jnp.mean(shifted, axis=1, keepdims=True)


def has_spread(values: chex.Array, std: chex.Array, relative_tolerance: float) -> chex.Array:
    """Whether values differ by more than rounding: std > relative_tolerance max |value|. [..., N], [...] -> [...]."""
    return std > relative_tolerance * jnp.max(jnp.abs(values), axis=-1)


def group_std(rewards: chex.Array, *, group_size: int, ddof: int = 1) -> chex.Array:
    """Standard deviation of each group: sqrt(sum (R - mean)^2 / (G - ddof)). float [B] -> float [B / G].

    Raises:
      ValueError: if B is not a multiple of group_size, or G <= ddof.
    """
    groups = grouped(rewards, group_size)
    if group_size <= ddof:
        raise ValueError(f"the std of a group of {group_size} with ddof={ddof} is not defined; use group_centered")
    # Two passes: E[x^2] - E[x]^2 leaves a residue in float32 that turns equal rewards into +-1000 (NeMo-RL PR 4161).
    centered = _centered(groups)
    return jnp.sqrt(jnp.sum(jnp.square(centered), axis=1) / (group_size - ddof))


def group_relative(
    rewards: chex.Array, *, group_size: int, ddof: int = 1, eps: float = 1e-6, relative_tolerance: float = 1e-6
) -> chex.Array:
    """GRPO: A_i = (R_i - mean_g) / (std_g + eps).

    Source: arXiv 2402.03300, eq. of section 4.1.2.

    Args:
      rewards: float [B].
      group_size: G.
      ddof: 1 is torch.std (verl, TRL, DeepSeekMath), 0 is numpy's (the R1 text).
      eps: added to the std; 1e-6 verl, 1e-4 TRL, 1e-8 understand-r1-zero.
      relative_tolerance: a group whose std is below this share of its largest |reward| counts as all-equal (its spread
        is rounding) and gets exactly 0.

    Returns:
      float [B].

    Raises:
      ValueError: if B is not a multiple of group_size, or G <= ddof.
    """
    groups = grouped(rewards, group_size)
    std = group_std(rewards, group_size=group_size, ddof=ddof)
    spread = has_spread(groups, std, relative_tolerance)
    return jnp.where(spread[:, None], _centered(groups) / (std[:, None] + eps), 0.0).reshape(-1)


def group_centered(rewards: chex.Array, *, group_size: int) -> chex.Array:
    """Dr. GRPO: A_i = R_i - mean_g, no division. float [B] -> float [B]. Source: arXiv 2503.20783."""
    return _centered(grouped(rewards, group_size)).reshape(-1)


def leave_one_out(rewards: chex.Array, *, group_size: int) -> chex.Array:
    """RLOO: A_i = R_i - mean of the other G - 1 rewards = G / (G - 1) (R_i - mean_g). float [B] -> float [B].

    Source: arXiv 2402.14740.

    Raises:
      ValueError: if group_size is 1.
    """
    groups = grouped(rewards, group_size)
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
    """Lite-PPO: A_i = (R_i - mean_g) / (std of all B rewards + eps). Batch-coupled: pass the global batch.

    The std is that of R (TRL scale_rewards="batch"). Source: arXiv 2508.08221.

    Args:
      rewards: float [B].
      group_size: G.
      ddof: as in `group_relative`, of the batch.
      eps: as in `group_relative`, of the batch.
      relative_tolerance: as in `group_relative`, of the batch.

    Returns:
      float [B].

    Raises:
      ValueError: if B is not a multiple of group_size, or B <= ddof.
    """
    centered = group_centered(rewards, group_size=group_size)
    batch = rewards.shape[0]
    std = group_std(rewards, group_size=batch, ddof=ddof)  # [1]
    spread = has_spread(grouped(rewards, batch), std, relative_tolerance)
    return jnp.where(spread, centered / (std + eps), 0.0)


def nemo_leave_one_out(
    rewards: chex.Array, *, group_size: int, eps: float = 1e-6, relative_tolerance: float = 1e-6
) -> chex.Array:
    """NeMo-RL's GRPO: A_i = (R_i - mean_{-i}) / (std_{-i} + eps), mean and std of the other G - 1 rewards (ddof 1).

    If the others are all equal, A_i = R_i - mean_{-i} is not divided: the one right answer of a group gets 1 for any G,
    and each wrong one more than its share, so a group does not sum to 0 (1,0,0,0 gives 1 and three times -.577).
    Source: NeMo-RL, the default of its GRPO in August 2026.

    Args:
      rewards: float [B].
      group_size: G; groups of two are never divided by a std.
      eps: added to the std.
      relative_tolerance: a std below this share of the largest |reward| of the others is rounding and counts as 0.

    Returns:
      float [B].

    Raises:
      ValueError: if group_size is 1.
    """
    groups = grouped(rewards, group_size)
    if group_size < 2:
        raise ValueError("nemo_leave_one_out needs group_size >= 2: a group of one has no others")
    others = groups[:, np.stack([np.delete(np.arange(group_size), i) for i in range(group_size)])]  # [B / G, G, G - 1]
    shifted = others - others[:, :, :1]
    own = groups - others[:, :, 0] - jnp.mean(shifted, axis=2)
    centered = shifted - jnp.mean(shifted, axis=2, keepdims=True)
    std = jnp.sqrt(jnp.sum(jnp.square(centered), axis=2) / max(group_size - 2, 1))
    return jnp.where(has_spread(others, std, relative_tolerance), own / (std + eps), own).reshape(-1)


def maxrl(rewards: chex.Array, *, group_size: int) -> chex.Array:
    """MaxRL: A_i = (R_i - mean_g) / mean_g, and 0 if mean_g is not positive. float [B] -> float [B].

    The gradient of the log pass rate instead of the pass rate: prompts are weighted by 1 / p, so hard ones weigh more.
    Rewards are not negative; 0 or 1 in the paper. Source: arXiv 2602.02710.

    Raises:
      ValueError: if B is not a multiple of group_size.
    """
    groups = grouped(rewards, group_size)
    mean = jnp.mean(groups, axis=1, keepdims=True)
    return (_centered(groups) / jnp.where(mean > 0, mean, jnp.inf)).reshape(-1)


def opo(rewards: chex.Array, *, group_size: int, lengths: chex.Array) -> chex.Array:
    """OPO: A_i = R_i - b_g, b_g = sum_j n_j R_j / sum_j n_j, which minimises sum_j n_j (R_j - b)^2.

    Source: arXiv 2505.23585.

    Args:
      rewards: float [B].
      group_size: G.
      lengths: int [B], n in tokens. A group without tokens has nothing to train.

    Returns:
      float [B].

    Raises:
      ValueError: if B is not a multiple of group_size.
    """
    chex.assert_equal_shape([rewards, lengths])
    groups = grouped(rewards, group_size)
    tokens = lengths.reshape(groups.shape).astype(groups.dtype)
    total = jnp.sum(tokens, axis=1, keepdims=True)
    shifted = groups - groups[:, :1]
    baseline = jnp.sum(tokens * shifted, axis=1, keepdims=True) / jnp.maximum(total, 1.0)
    return (shifted - baseline).reshape(-1)


def gpg(rewards: chex.Array, *, group_size: int, count_groups: bool = False) -> chex.Array:
    """GPG: A_i = alpha (R_i - mean_g), alpha = B / #(rewards that are not 0), as in verl.

    Source: arXiv 2504.02546.

    Args:
      rewards: float [B].
      group_size: G.
      count_groups: alpha = #groups / #(groups whose rewards differ), as in the paper: groups without a gradient do not
        dilute the batch's. verl's alpha counts rewards instead, so it differs if a wrong answer earns -1 instead of 0,
        and is 1 if no reward is 0.

    Returns:
      float [B].

    Raises:
      ValueError: if B is not a multiple of group_size.
    """
    groups = grouped(rewards, group_size)
    counted = jnp.any(groups != groups[:, :1], axis=1) if count_groups else rewards != 0
    alpha = counted.size / jnp.maximum(jnp.sum(counted), 1)
    return (alpha * _centered(groups)).reshape(-1)


def to_tokens(advantages: chex.Array, completion_mask: chex.Array) -> chex.Array:
    """The same advantage on every completion token, 0 elsewhere. float [B], bool [B, T] -> float [B, T]."""
    chex.assert_rank([advantages, completion_mask], [1, 2])
    chex.assert_equal_shape_prefix([advantages, completion_mask], 1)
    return zero_masked(jnp.broadcast_to(advantages[:, None], completion_mask.shape), completion_mask)
