"""Rewards [B] -> rewards [B], before any advantage: (rewards, lengths, truncated, key, *, ...) -> rewards.

lengths: int [B], tokens of each completion. truncated: bool [B], those that were cut off, so have no EOS. Arrays that
only some need are required keywords, which the recipe supplies by name (rl_jax.binding.supply).
"""

import chex
import jax
import jax.numpy as jnp


def unchanged(rewards: chex.Array, lengths: chex.Array, truncated: chex.Array, key: chex.PRNGKey) -> chex.Array:
    """The rewards as they are. float [B] -> float [B]."""
    return rewards


def shuffled(rewards: chex.Array, lengths: chex.Array, truncated: chex.Array, key: chex.PRNGKey) -> chex.Array:
    """The wrong-reward control: the batch's rewards, dealt out again at random over all its rows.

    Their distribution is kept and their information destroyed, so that nothing but chance can be learned from them.
    rewards: float [B]. key: a typed key. Source: the spurious-reward controls of arXiv 2507.10532.
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

    rewards: float [B]. lengths: int [B], n in tokens. max_length, buffer: tokens. At n = max_length it is -penalty.
    Source: arXiv 2503.14476 eq. 13.
    """
    chex.assert_equal_shape([rewards, lengths])
    excess = (lengths - (max_length - buffer)).astype(rewards.dtype)
    return rewards + jnp.minimum(-excess / buffer * penalty, 0.0)


def missing_eos_penalty(
    rewards: chex.Array, lengths: chex.Array, truncated: chex.Array, key: chex.PRNGKey, *, penalty: float = 1.0
) -> chex.Array:
    """R - penalty for completions that were cut off. float [B], bool [B] -> float [B]. penalty: in the reward's units.

    Source: missing_eos_penalty of TRL's PPO and online DPO trainers.
    """
    _check(rewards, truncated)
    return rewards - jnp.where(truncated, penalty, 0.0)


def replace_truncated(
    rewards: chex.Array, lengths: chex.Array, truncated: chex.Array, key: chex.PRNGKey, *, reward: float = -1.0
) -> chex.Array:
    """`reward` in the place of R for completions that were cut off, whatever they earned. float [B] -> float [B].

    Source: non_stop_penalty of open-instruct (Tulu 3, arXiv 2411.15124), with its default.
    """
    _check(rewards, truncated)
    return jnp.where(truncated, jnp.asarray(reward, rewards.dtype), rewards)


def scale_truncated(
    rewards: chex.Array, lengths: chex.Array, truncated: chex.Array, key: chex.PRNGKey, *, factor: float = 0.0
) -> chex.Array:
    """factor * R for completions that were cut off: a part of what they earned. float [B] -> float [B].

    A negative reward becomes a better one. Source: OpenRLHF's stop_properly_penalty_coef (ProRL v2).
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
    """PPO-max: clip(R / std, -bound, bound), or (R - mean) / std where `center`.

    rewards: float [B]. reward_mean, reward_std: float [], of all rewards so far, these ones included
    (trackers.running_moments). center: not by default, since a baseline takes the mean off later.
    Source: arXiv 2307.04964 and its code.
    """
    _check(rewards, truncated)
    chex.assert_rank([reward_mean, reward_std], 0)
    shifted = rewards - reward_mean if center else rewards
    return jnp.clip(shifted / reward_std, -bound, bound)


def _check(rewards: chex.Array, truncated: chex.Array) -> None:
    chex.assert_rank(rewards, 1)
    chex.assert_equal_shape([rewards, truncated])
    chex.assert_type([rewards, truncated], [float, bool])
