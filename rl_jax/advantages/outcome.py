"""Rewards [B] -> advantages [B] with a baseline other than the group mean, or with more than one reward."""

import functools
import math

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.groups import group_centered, group_relative


def no_baseline(rewards: chex.Array) -> chex.Array:
    """REINFORCE: A = R. float [B] -> float [B]."""
    chex.assert_rank(rewards, 1)
    chex.assert_type(rewards, float)
    return rewards


def batch_centered(rewards: chex.Array) -> chex.Array:
    """A = R - mean of the batch, for one sample per prompt. Batch-coupled: pass the global batch. float [B] -> [B].

    Source: OpenRLHF's flash_reinforce.
    """
    return group_centered(rewards, group_size=rewards.shape[0])


def batch_relative(
    rewards: chex.Array, *, ddof: int = 1, eps: float = 1e-4, relative_tolerance: float = 1e-6
) -> chex.Array:
    """A = (R - mean) / (std + eps), both of the whole batch. Batch-coupled: pass the global batch.

    float [B] -> float [B]. ddof, eps and relative_tolerance are as in `group_relative`; eps is 1e-4 in TRL's RLOO.

    Raises:
      ValueError: if B <= ddof.
    """
    size = rewards.shape[0]
    return group_relative(rewards, group_size=size, ddof=ddof, eps=eps, relative_tolerance=relative_tolerance)


def tracked_baseline(rewards: chex.Array, *, baseline: chex.Array) -> chex.Array:
    """A = R - b. b must not depend on these rewards, or it is biased: use a tracker's value from before the batch.

    Source: REINFORCE with a baseline (Williams, 1992).

    Args:
      rewards: float [B].
      baseline: float [] (trackers.ema_mean), or float [B], one per row's prompt (trackers.beta_values).

    Returns:
      float [B].
    """
    chex.assert_rank([rewards, baseline], [1, {0, 1}])
    chex.assert_type([rewards, baseline], float)
    return rewards - jnp.broadcast_to(baseline, rewards.shape)


def tracked_relative(rewards: chex.Array, *, baseline: chex.Array, ddof: int = 1, eps: float = 1e-8) -> chex.Array:
    """SPO: R - b, then (x - mean) / (std + eps) over the batch. Batch-coupled: pass the global batch.

    Source: arXiv 2509.13232 and its code in verl-recipe.

    Args:
      rewards: float [B].
      baseline: as in `tracked_baseline`.
      ddof: of the std.
      eps: added to the std.

    Returns:
      float [B].

    Raises:
      ValueError: if B <= ddof.
    """
    return batch_relative(tracked_baseline(rewards, baseline=baseline), ddof=ddof, eps=eps)


def remax(rewards: chex.Array, *, greedy_rewards: chex.Array) -> chex.Array:
    """ReMax: A = R - R(greedy completion of the same prompt). float [B] x2 -> float [B].

    A KL in the reward is that of the whole row; `returns.remax_to_go` uses the KL of the tokens to come.
    Source: arXiv 2310.10505.
    """
    chex.assert_rank([rewards, greedy_rewards], 1)
    chex.assert_equal_shape([rewards, greedy_rewards])
    chex.assert_type([rewards, greedy_rewards], float)
    return rewards - greedy_rewards


def gdpo(
    rewards: chex.Array,
    *,
    components: chex.Array,
    group_size: int,
    weights: tuple[float, ...] | None = None,
    ddof: int = 1,
    eps: float = 1e-4,
) -> chex.Array:
    """GDPO: sum_k w_k (R_k - mean_g) / (std_g + eps), then (x - mean) / (std + eps) over the batch.

    Each component is normalised within its group first, so that one with a small scale is not dominated by the others.
    Batch-coupled: pass the global batch.
    Source: arXiv 2601.05242; TRL's normalize_then_sum. verl whitens over tokens (`returns.gdpo_tokens`).

    Args:
      rewards: float [B]; only its shape is used: shaping and KL in the reward have no effect.
      components: float [B, K].
      group_size: G.
      weights: w, K of them; None is 1 each.
      ddof: of both stds.
      eps: added to both stds.

    Returns:
      float [B].

    Raises:
      ValueError: if the number of weights is not K, and as in `group_relative`.
    """
    return batch_relative(combined_components(rewards, components, group_size, weights, ddof, eps), ddof=ddof, eps=eps)


def combined_components(
    rewards: chex.Array,
    components: chex.Array,
    group_size: int,
    weights: tuple[float, ...] | None,
    ddof: int,
    eps: float,
) -> chex.Array:
    """sum_k w_k (R_k - mean_g) / (std_g + eps), the shared part of the GDPO variants. float [B, K] -> [B]."""
    chex.assert_rank([rewards, components], [1, 2])
    chex.assert_equal_shape_prefix([rewards, components], 1)
    count = components.shape[1]
    weights = (1.0,) * count if weights is None else tuple(weights)
    if len(weights) != count:
        raise ValueError(f"{len(weights)} weights for {count} reward components")
    normalise = functools.partial(group_relative, group_size=group_size, ddof=ddof, eps=eps)
    return sum(weights[k] * normalise(components[:, k]) for k in range(count))


def beta_normalized(
    rewards: chex.Array, *, group_size: int, low: float = 0.0, high: float = 1.0, max_weight: float = 1e6
) -> chex.Array:
    """BNPO: A_i = (R_i - p_g) / f(p_g; alpha, beta), p_g the mean of the group and f the density of Beta.

        a = (mu (1 - mu) / v - 1) mu,    b = (mu (1 - mu) / v - 1) (1 - mu)
        alpha = max(1 + a / 3, 1),       beta = max(1 + b / 3, 1)

    mu and v are the mean and the variance (ddof 1) of p over the groups of the batch, so that a and b fit a Beta to
    them. alpha = beta = 1 is Dr. GRPO's R - p, and 1.5 is GRPO up to a constant. A single group, or equal p, has no
    fit: both are 1. Batch-coupled: pass the global batch.
    Source: arXiv 2506.02864 and its code (TRL's loss_type "bnpo" is an aggregation and unrelated).

    Args:
      rewards: float [B], from low to high; A is that of (R - low) / (high - low).
      group_size: G.
      low: lowest reward.
      high: highest reward.
      max_weight: upper bound of 1 / f.

    Returns:
      float [B].

    Raises:
      ValueError: if B is not a multiple of group_size.
    """
    # Centred before scaling: a difference of rounded numbers times a weight of 1e6 is not 0.
    centered = group_centered(rewards, group_size=group_size).reshape(-1, group_size) / (high - low)
    p = jnp.clip((jnp.mean(rewards.reshape(-1, group_size), axis=1) - low) / (high - low), 0.0, 1.0)
    mu = jnp.mean(p)
    squares = jnp.sum(jnp.square(group_centered(p, group_size=len(p))))
    # mu (1 - mu) / v - 1; -1 without a spread, so that alpha = beta = 1.
    size = mu * (1.0 - mu) * (len(p) - 1) / jnp.where(squares > 0, squares, jnp.inf) - 1.0
    alpha = jnp.maximum(1.0 + size * mu / 3.0, 1.0)
    beta = jnp.maximum(1.0 + size * (1.0 - mu) / 3.0, 1.0)
    special = jax.scipy.special
    log_density = special.xlogy(alpha - 1.0, p) + special.xlog1py(beta - 1.0, -p) - special.betaln(alpha, beta)
    weight = jnp.exp(jnp.minimum(-log_density, math.log(max_weight)))  # bounded before exp: f(0) is 0
    return (weight[:, None] * centered).reshape(-1)
