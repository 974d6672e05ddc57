"""Rewards [B] -> rewards [B], before any advantage: (rewards, lengths, truncated, key, *, ...) -> rewards.

Every function takes rewards, float [B]; lengths, int [B], tokens of each completion; truncated, bool [B], completions
that were cut off and have no EOS; and a typed key. Arrays that only some need are required keywords, which the recipe
supplies by name (rl_jax.core.names).
"""

import chex
import jax
import jax.numpy as jnp


def unchanged(rewards: chex.Array, lengths: chex.Array, truncated: chex.Array, key: chex.PRNGKey) -> chex.Array:
    """The rewards as they are. float [B] -> float [B]."""
    return rewards


def shuffled(rewards: chex.Array, lengths: chex.Array, truncated: chex.Array, key: chex.PRNGKey) -> chex.Array:
    """The wrong-reward control: the batch's rewards, permuted at random over all its rows. float [B] -> float [B].

    Keeps their distribution and destroys their information, so that only chance can be learned from them.
    Source: the spurious-reward controls of arXiv 2507.10532.
    """
    chex.assert_rank(rewards, 1)
    return jax.random.permutation(key, rewards)


def overlong(
    rewards: chex.Array,
    lengths: chex.Array,
    truncated: chex.Array,
    key: chex.PRNGKey,
    *,
    max_length: int,
    buffer: int,
    penalty: float = 1.0,
) -> chex.Array:
    """DAPO's soft overlong punishment: R + min(-(n - (max_length - buffer)) / buffer * penalty, 0).

    Source: arXiv 2503.14476 eq. 13.

    Args:
      rewards: float [B].
      lengths: int [B], n in tokens.
      truncated: unused.
      key: unused.
      max_length: tokens; there the punishment is -penalty.
      buffer: tokens before max_length over which it grows.
      penalty: in the reward's units.

    Raises:
      ValueError: if 0 < buffer <= max_length does not hold.
    """
    chex.assert_equal_shape([rewards, lengths])
    if not 0 < buffer <= max_length:  # with 0 the last token would give 0 / 0
        raise ValueError(
            f"shaping overlong needs 0 < buffer <= max_length, got buffer={buffer} and max_length={max_length}: "
            "buffer=1 punishes the last token only; missing_eos_penalty punishes what is cut off"
        )
    excess = (lengths - (max_length - buffer)).astype(rewards.dtype)
    return rewards + jnp.minimum(-excess / buffer * penalty, 0.0)


def missing_eos_penalty(
    rewards: chex.Array, lengths: chex.Array, truncated: chex.Array, key: chex.PRNGKey, *, penalty: float = 1.0
) -> chex.Array:
    """R - penalty for completions that were cut off. float [B] -> float [B].

    Source: missing_eos_penalty of TRL's PPO and online DPO trainers.
    """
    _check(rewards, truncated)
    return rewards - jnp.where(truncated, penalty, 0.0)


def replace_truncated(
    rewards: chex.Array, lengths: chex.Array, truncated: chex.Array, key: chex.PRNGKey, *, reward: float = -1.0
) -> chex.Array:
    """`reward` instead of R for completions that were cut off. float [B] -> float [B].

    Source: non_stop_penalty of open-instruct (Tulu 3, arXiv 2411.15124), with its default.
    """
    _check(rewards, truncated)
    return jnp.where(truncated, jnp.asarray(reward, rewards.dtype), rewards)


def scale_truncated(
    rewards: chex.Array, lengths: chex.Array, truncated: chex.Array, key: chex.PRNGKey, *, factor: float = 0.0
) -> chex.Array:
    """factor * R for completions that were cut off. float [B] -> float [B].

    A negative reward increases. Source: OpenRLHF's stop_properly_penalty_coef (ProRL v2).
    """
    _check(rewards, truncated)
    return jnp.where(truncated, factor * rewards, rewards)


def clip_rewards(
    rewards: chex.Array,
    lengths: chex.Array,
    truncated: chex.Array,
    key: chex.PRNGKey,
    *,
    low: float = -10.0,
    high: float = 10.0,
) -> chex.Array:
    """min(max(R, low), high). float [B] -> float [B]. The bounds are OpenRLHF's and PPO-max's."""
    _check(rewards, truncated)
    return jnp.clip(rewards, low, high)


def scaled(
    rewards: chex.Array,
    lengths: chex.Array,
    truncated: chex.Array,
    key: chex.PRNGKey,
    *,
    reward_mean: chex.Array,
    reward_std: chex.Array,
    center: bool = False,
    bound: float = 10.0,
) -> chex.Array:
    """PPO-max: clip(R / std, -bound, bound), or (R - mean) / std with `center`.

    Source: arXiv 2307.04964 and its code.

    Args:
      rewards: float [B].
      lengths: unused.
      truncated: unused.
      key: unused.
      reward_mean: float [], of all rewards so far, including these (trackers.running_moments).
      reward_std: float [], likewise.
      center: off by default, since a baseline subtracts the mean later.
      bound: of the result.
    """
    _check(rewards, truncated)
    chex.assert_rank([reward_mean, reward_std], 0)
    shifted = rewards - reward_mean if center else rewards
    return jnp.clip(shifted / reward_std, -bound, bound)


def _check(rewards: chex.Array, truncated: chex.Array) -> None:
    chex.assert_rank(rewards, 1)
    chex.assert_equal_shape([rewards, truncated])
    chex.assert_type([rewards, truncated], [float, bool])


# --- Learned rewards, against those of reference responses to the same prompt ----------------------------------------
# They ask for reference_rewards, float [B, M]: rewards of M responses of the reference policy to each row's prompt
# (config.sample.references).


def against_references(
    rewards: chex.Array,
    lengths: chex.Array,
    truncated: chex.Array,
    key: chex.PRNGKey,
    *,
    reference_rewards: chex.Array,
    slope: float = 1.0,
) -> chex.Array:
    """PAR: 1/M sum_m sigma(slope (R - r_m)), the probability of winning against a reference; bounded.

    Source: arXiv 2502.18770 and its code (calculate_relative_sigmoid, sigmoid_k = slope = 1).

    Args:
      rewards: float [B] of a Bradley-Terry model.
      lengths: unused.
      truncated: unused.
      key: unused.
      reference_rewards: float [B, M]; M = 10 in the paper.
      slope: of the sigmoid.

    Returns:
      float [B].
    """
    gaps = _gaps(rewards, truncated, reference_rewards)
    return jnp.mean(jax.nn.sigmoid(slope * gaps), axis=1)


def tanh_against_references(
    rewards: chex.Array,
    lengths: chex.Array,
    truncated: chex.Array,
    key: chex.PRNGKey,
    *,
    reference_rewards: chex.Array,
) -> chex.Array:
    """1/M sum_m tanh(R - r_m). float [B], [B, M] -> float [B]. Source: compared in arXiv 2502.18770."""
    return jnp.mean(jnp.tanh(_gaps(rewards, truncated, reference_rewards)), axis=1)


def centered_on_references(
    rewards: chex.Array,
    lengths: chex.Array,
    truncated: chex.Array,
    key: chex.PRNGKey,
    *,
    reference_rewards: chex.Array,
) -> chex.Array:
    """R - 1/M sum_m r_m. float [B], [B, M] -> float [B]; unbounded. Source: compared in arXiv 2502.18770."""
    return jnp.mean(_gaps(rewards, truncated, reference_rewards), axis=1)


def log_sigmoid_centered(
    rewards: chex.Array,
    lengths: chex.Array,
    truncated: chex.Array,
    key: chex.PRNGKey,
    *,
    reference_rewards: chex.Array,
    quantile: float = 0.85,
) -> chex.Array:
    """log sigma(R - q), q the quantile of the normal with the references' mean and std (ddof 0, + 1e-5).

    float [B], [B, M] -> float [B], at most 0.
    Source: arXiv 2402.00742; .85 and the normal fit are those of the code of arXiv 2502.18770.
    """
    _gaps(rewards, truncated, reference_rewards)
    spread = jnp.std(reference_rewards, axis=1) + 1e-5
    centre = jnp.mean(reference_rewards, axis=1) + spread * jax.scipy.special.ndtri(quantile)
    return jax.nn.log_sigmoid(rewards - centre)


def clipped_to_spread(
    rewards: chex.Array,
    lengths: chex.Array,
    truncated: chex.Array,
    key: chex.PRNGKey,
    *,
    reward_mean: chex.Array,
    reward_std: chex.Array,
) -> chex.Array:
    """min(max(R, mean - std), mean + std) of all rewards so far (trackers.running_moments). float [B] -> float [B].

    Source: reward_clipping, compared in arXiv 2502.18770.
    """
    _check(rewards, truncated)
    chex.assert_rank([reward_mean, reward_std], 0)
    return jnp.clip(rewards, reward_mean - reward_std, reward_mean + reward_std)


def length_penalty(
    rewards: chex.Array,
    lengths: chex.Array,
    truncated: chex.Array,
    key: chex.PRNGKey,
    *,
    free_length: int,
    penalty: float,
) -> chex.Array:
    """R - penalty max(n - free_length, 0). float [B], int [B] -> float [B].

    Source: len_penalty and gen_valid_len of the code of arXiv 2502.18770.

    Args:
      rewards: float [B].
      lengths: int [B], n in tokens.
      truncated: unused.
      key: unused.
      free_length: tokens without a penalty.
      penalty: per further token, in the reward's units.
    """
    _check(rewards, truncated)
    return rewards - penalty * jnp.maximum(lengths - free_length, 0).astype(rewards.dtype)


def _gaps(rewards: chex.Array, truncated: chex.Array, reference_rewards: chex.Array) -> chex.Array:
    """R - r_m, float [B, M]."""
    _check(rewards, truncated)
    chex.assert_rank(reference_rewards, 2)
    return rewards[:, None] - reference_rewards


def shorter_than_before(
    rewards: chex.Array,
    lengths: chex.Array,
    truncated: chex.Array,
    key: chex.PRNGKey,
    *,
    best_lengths: chex.Array,
    weight: float = 1.0,
    lowest: float = -0.7,
    right: float = 1.0,
) -> chex.Array:
    """HAPO: right answers earn more the shorter they are than the prompt's shortest right answer of earlier steps.

        R + weight max(f, lowest) for a right answer, R + weight min(f, 0) for a wrong one, f = cos(pi/2 min(n / h, 2))

    f is 1 towards length 0, 0 at n = h, -1 from n = 2 h on, and 0 for a prompt without a right answer so far.
    Source: arXiv 2505.11225; compute_len_reward of HCY123902/HAPO. With lowest * weight > -1 no wrong answer earns as
    much as a right one of the reward 1.

    Args:
      rewards: float [B].
      lengths: int [B], n in tokens.
      truncated: unused.
      key: unused.
      best_lengths: float [B], h in tokens; 0: none.
      weight: of f.
      lowest: bound of f for a right answer.
      right: reward from which an answer counts as right.

    Returns:
      float [B].
    """
    chex.assert_equal_shape([rewards, lengths, best_lengths])
    known = best_lengths > 0
    ratio = jnp.minimum(lengths / jnp.where(known, best_lengths, 1.0), 2.0)
    bonus = jnp.where(known, jnp.cos(jnp.pi / 2 * ratio), 0.0)
    bonus = jnp.where(rewards >= right, jnp.maximum(bonus, lowest), jnp.minimum(bonus, 0.0))
    return rewards + (weight * bonus).astype(rewards.dtype)


def soft_threshold(
    rewards: chex.Array,
    lengths: chex.Array,
    truncated: chex.Array,
    key: chex.PRNGKey,
    *,
    threshold: float = 0.8,
    slope_above: float = 0.01,
    slope_below: float = 1.0,
) -> chex.Array:
    """TempSamp-R1: high rewards are brought together and low ones apart, so that one perfect row does not rule a group.

        t + a log(R - t + 1) if R >= t;   t - (exp(b (t - R)) - 1) / (exp(b) - 1) if R < t

    Our reading of arXiv 2509.18056: its code could not be read. float [B] -> float [B].

    Args:
      rewards: float [B], from 0 to 1.
      lengths: unused.
      truncated: unused.
      key: unused.
      threshold: t.
      slope_above: a.
      slope_below: b, above 0.
    """
    _check(rewards, truncated)
    above = threshold + slope_above * jnp.log1p(jnp.maximum(rewards - threshold, 0.0))
    below = jnp.expm1(slope_below * jnp.maximum(threshold - rewards, 0.0)) / jnp.expm1(slope_below)
    return jnp.where(rewards >= threshold, above, threshold - below)
