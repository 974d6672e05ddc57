"""Rewards [B] -> advantages [B] whose baseline is not the mean of a group, or which have more than one reward."""

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
    """A = R - mean of the batch, for one sample a prompt. Batch-coupled: give it the global batch. float [B] -> [B].

    Source: OpenRLHF's flash_reinforce.
    """
    return group_centered(rewards, group_size=rewards.shape[0])


def batch_relative(
    rewards: chex.Array, *, ddof: int = 1, eps: float = 1e-4, relative_tolerance: float = 1e-6
) -> chex.Array:
    """A = (R - mean) / (std + eps), both of the whole batch. Batch-coupled: give it the global batch.

    float [B] -> float [B]. ddof, eps and relative_tolerance as in group_relative. eps: 1e-4 in TRL's RLOO.
    Raises ValueError where B <= ddof.
    """
    size = rewards.shape[0]
    return group_relative(rewards, group_size=size, ddof=ddof, eps=eps, relative_tolerance=relative_tolerance)


def tracked_baseline(rewards: chex.Array, *, baseline: chex.Array) -> chex.Array:
    """A = R - b. b must not have seen these rewards, or it is biased: a tracker's value from before the batch.

    rewards: float [B]. baseline: float [] (trackers.ema_mean), or float [B], one for each row's prompt
    (trackers.beta_values). Returns float [B]. Source: REINFORCE with a baseline (Williams, 1992).
    """
    chex.assert_rank([rewards, baseline], [1, {0, 1}])
    chex.assert_type([rewards, baseline], float)
    return rewards - jnp.broadcast_to(baseline, rewards.shape)


def tracked_relative(rewards: chex.Array, *, baseline: chex.Array, ddof: int = 1, eps: float = 1e-8) -> chex.Array:
    """SPO: R - b, then (x - mean) / (std + eps) over the batch. Batch-coupled: give it the global batch.

    rewards, baseline: as of `tracked_baseline`. ddof, eps: of the std. Returns float [B].
    Raises ValueError where B <= ddof. Source: arXiv 2509.13232 and its code in verl-recipe.
    """
    return batch_relative(tracked_baseline(rewards, baseline=baseline), ddof=ddof, eps=eps)


def remax(rewards: chex.Array, *, greedy_rewards: chex.Array) -> chex.Array:
    """ReMax: A = R - R(greedy completion of the same prompt). float [B] x2 -> float [B].

    Any KL in the reward is the whole row's; `returns.remax_to_go` has that of the tokens to come.
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

    Each component is normalised in its group first, so that one with a small scale is not drowned by the others.
    rewards: float [B], unused beyond its shape: shaping and KL in the reward do not enter. components: float [B, K].
    group_size: G. weights: w, K of them; None is 1 each. ddof, eps: of both stds. Returns float [B]. Batch-coupled.
    Raises ValueError for a wrong number of weights and as group_relative does.
    Source: arXiv 2601.05242; TRL's normalize_then_sum. verl whitens over tokens (`returns.gdpo_tokens`).
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
    """sum_k w_k (R_k - mean_g) / (std_g + eps), the part of GDPO that is the same everywhere. float [B, K] -> [B]."""
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

    With mu and v the mean and the variance (ddof 1) of p over the groups of the batch, a = (mu (1 - mu) / v - 1) mu
    and b = (mu (1 - mu) / v - 1) (1 - mu) fit a Beta to them; alpha = max(1 + a / 3, 1), beta = max(1 + b / 3, 1).
    alpha = beta = 1 is Dr. GRPO's R - p, and 1.5 GRPO but for a constant. One group, or equal p, has no fit: 1 and 1.
    rewards: float [B] from low to high; A is that of (R - low) / (high - low). group_size: G. max_weight: of 1 / f.
    Returns float [B]. Batch-coupled: give it the global batch. Raises ValueError where the groups do not divide B.
    Source: arXiv 2506.02864 and its code (TRL's loss_type "bnpo" is another thing, an aggregation).
    """
    # Centred before it is scaled: a difference of rounded numbers times a weight of 1e6 is not 0.
    centered = group_centered(rewards, group_size=group_size).reshape(-1, group_size) / (high - low)
    p = jnp.clip((jnp.mean(rewards.reshape(-1, group_size), axis=1) - low) / (high - low), 0.0, 1.0)
    mu = jnp.mean(p)
    squares = jnp.sum(jnp.square(group_centered(p, group_size=len(p))))
    # mu (1 - mu) / v - 1; without a spread -1, and so alpha = beta = 1.
    size = mu * (1.0 - mu) * (len(p) - 1) / jnp.where(squares > 0, squares, jnp.inf) - 1.0
    alpha = jnp.maximum(1.0 + size * mu / 3.0, 1.0)
    beta = jnp.maximum(1.0 + size * (1.0 - mu) / 3.0, 1.0)
    special = jax.scipy.special
    log_density = special.xlogy(alpha - 1.0, p) + special.xlog1py(beta - 1.0, -p) - special.betaln(alpha, beta)
    weight = jnp.exp(jnp.minimum(-log_density, math.log(max_weight)))  # bounded before exp: f(0) is 0
    return (weight[:, None] * centered).reshape(-1)
