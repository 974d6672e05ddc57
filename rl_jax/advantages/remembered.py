"""Advantages that also look at the rewards of earlier steps (rl_jax.advantages.memory): rewards [B] -> [B].

Named in a config by their import path, "rl_jax.advantages.remembered:bundled_risk".
"""

import chex
import jax.numpy as jnp

from rl_jax.advantages.groups import group_std, grouped, has_spread


def pooled(
    visits: chex.Array, mean: chex.Array, std: chex.Array, old_mean: chex.Array, old_std: chex.Array
) -> tuple[chex.Array, chex.Array]:
    """Mean and std over i visits, from those of the i-th and those of the i - 1 before it; float [...] each.

        mean = ((i - 1) m_old + m) / i,   var = ((i - 1) s_old^2 + s^2 + (i - 1) / i (m - m_old)^2) / i

    Source: arXiv 2509.02333; exact if each visit has as many samples and its std has ddof 0.
    """
    before = visits - 1.0
    gap = before / visits * jnp.square(mean - old_mean)
    var = (before * jnp.square(old_std) + jnp.square(std) + gap) / visits
    return (before * old_mean + mean) / visits, jnp.sqrt(var)


def smooth_standardized(
    rewards: chex.Array,
    *,
    group_size: int,
    prompt_moments: chex.Array,
    ddof: int = 1,
    relative_tolerance: float = 1e-6,
) -> chex.Array:
    """DCPO's smooth advantage standardisation: at a prompt's i-th visit, of two mixtures the smaller in size.

        (i-1)/i A_new + 1/i A_all   and   1/i A_new + (i-1)/i A_all
        A_new = (R - mean_g) / std_g,   A_all = (R - mean) / std over all visits, this one included (`pooled`)

    A group of equal rewards has A_new = 0 and still learns from A_all. At the first visit it is GRPO's without an eps.
    Source: arXiv 2509.02333; compute_dcpo_outcome_advantage of lime-RL/DCPO.

    Args:
      rewards: float [B].
      group_size: G; a group is one visit.
      prompt_moments: float [B, 3]. Visits, mean and std of the row's prompt before this step.
      ddof: of the group's std; 1 in the code.
      relative_tolerance: a std below this share of the largest |reward| is rounding: that standardisation gives 0.

    Returns:
      float [B].

    Raises:
      ValueError: if B is not a multiple of group_size, or G <= ddof.
    """
    groups, std = grouped(rewards, group_size), group_std(rewards, group_size=group_size, ddof=ddof)[:, None]
    chex.assert_shape(prompt_moments, (len(rewards), 3))
    visits, old_mean, old_std = (grouped(column, group_size)[:, :1] for column in prompt_moments.T)
    visits = visits + 1.0
    mean = groups[:, :1] + jnp.mean(groups - groups[:, :1], axis=1, keepdims=True)
    all_mean, all_std = pooled(visits, mean, std, old_mean, old_std)
    largest = jnp.maximum(jnp.max(jnp.abs(groups), axis=1, keepdims=True), jnp.abs(all_mean))

    def standardized(centre: chex.Array, spread: chex.Array) -> chex.Array:
        known = spread > relative_tolerance * largest
        return jnp.where(known, (groups - centre) / jnp.where(known, spread, 1.0), 0.0)

    newest, overall = standardized(mean, std), standardized(all_mean, all_std)
    share = 1.0 / visits
    left, right = (1.0 - share) * newest + share * overall, share * newest + (1.0 - share) * overall
    return jnp.where(jnp.abs(left) < jnp.abs(right), left, right).reshape(-1)


def bundle_scores(rewards: chex.Array, *, group_size: int, bundle_size: int) -> chex.Array:
    """The sums of rewards over bundles: the j-th answer to each of `bundle_size` neighbouring prompts is bundle j.

    float [B] -> float [bundles, G]; the last bundle has fewer prompts if they do not divide.

    Raises:
      ValueError: if bundle_size is below 1, or B is not a multiple of group_size.
    """
    if bundle_size < 1:
        raise ValueError(f"bundle_size={bundle_size} must be at least 1")
    groups = grouped(rewards, group_size)
    missing = -len(groups) % bundle_size
    return jnp.pad(groups, ((0, missing), (0, 0))).reshape(-1, bundle_size, group_size).sum(axis=1)


def bundled_risk(
    rewards: chex.Array,
    *,
    group_size: int,
    score_quantiles: chex.Array,
    bundle_size: int = 5,
    low: float = 0.2,
    high: float = 0.8,
    tail_weight: float = 1.5,
    natural_baseline: bool = True,
    eps: float = 1e-6,
    relative_tolerance: float = 1e-6,
) -> chex.Array:
    """RiskPO: the mixed value at risk of a bundle's score S, shared by all its answers.

        A = (w A_tail + A_range) / (w + 1) / std,   std over the G bundles of the same prompts
        A_tail = -(q_low - S)+ / low,   A_range = ((S - q_low)+ - (S - q_high)+ + q_low - q_high) / (high - low)

    The slope in S is w / low / (w + 1) below q_low, 1 / (high - low) / (w + 1) up to q_high and 0 above, where A is 0
    too: what is solved already is not pushed further, and the rest is pushed down. Before the quantiles are known,
    those of the G bundles themselves are used.

    Source: arXiv 2510.00911; RTkenny/RiskPO. Its README, its defaults and two of its three scripts have q_low - q_high
    in A_range; its script of DAPO's prompts leaves them out, so that all above q_low is pushed up. Its scripts also
    split A within a bundle, by R_i - mean of the question or by the question's std; the paper's shared advantage, its
    code's default, is used here. A bundle without a spread is not divided, where its code divides by eps. As others
    report the paper (its text was not reached), its objective is (1 + w) int_0^low + int_low^high of the quantiles, so
    that the slopes below and above q_low are as 1 + w to 1, with w = .5 best, no std is divided by, and one ratio a
    row is clipped: tail_weight = (1 + w) low / (high - low), .5 there, where the scripts' 1.5 makes it 4.5 to 1.

    Args:
      rewards: float [B].
      group_size: G.
      score_quantiles: float [3]: q_low, q_high, and 0 if they are not known yet.
      bundle_size: prompts of a bundle; neighbours.
      low: level of q_low.
      high: level of q_high.
      tail_weight: w.
      natural_baseline: with q_low - q_high in A_range.
      eps: added to the std.
      relative_tolerance: a std below this share of the largest |S| counts as 0.

    Returns:
      float [B].

    Raises:
      ValueError: if not 0 < low < high <= 1, bundle_size is below 1, or B is not a multiple of group_size.
    """
    if not 0 < low < high <= 1:
        raise ValueError(f"low={low} and high={high} must be levels, 0 < low < high <= 1")
    scores = bundle_scores(rewards, group_size=group_size, bundle_size=bundle_size)  # [bundles, G]
    chex.assert_shape(score_quantiles, (3,))
    own = jnp.quantile(scores, jnp.array([low, high]), axis=1)  # [2, bundles]
    tracked = jnp.broadcast_to(score_quantiles[:2, None], own.shape)
    q_low, q_high = jnp.where(score_quantiles[2] > 0, tracked, own)[:, :, None]
    tail = -jnp.maximum(q_low - scores, 0.0) / low
    middle = jnp.maximum(scores - q_low, 0.0) - jnp.maximum(scores - q_high, 0.0)
    middle = (middle + q_low - q_high if natural_baseline else middle) / (high - low)
    mixed = (tail_weight * tail + middle) / (tail_weight + 1.0)
    std = jnp.std(scores, axis=1, ddof=min(1, group_size - 1))
    spread = has_spread(scores, std, relative_tolerance)[:, None]
    mixed = jnp.where(spread, mixed / (std[:, None] + eps), mixed)
    return jnp.repeat(mixed, bundle_size, axis=0)[: len(rewards) // group_size].reshape(-1)
