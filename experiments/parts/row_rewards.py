"""The reward of a row that is an episode: where it is paid, and what a row gets whose environment failed."""

import numpy as np

from rl_jax.core.types import Rollout


def paid_at_the_end(rollout: Rollout, outcome: np.ndarray) -> np.ndarray:
    """float32 [B, C]: the turns' rewards, with a row's outcome added at its last sampled token."""
    numbers, rewards = rollout.turns.numbers, rollout.turns.rewards.copy()
    sampled = numbers >= 0
    last = numbers.shape[1] - 1 - np.argmax(sampled[:, ::-1], axis=1)
    rows = np.flatnonzero(sampled.any(axis=1))
    rewards[rows, last[rows]] += outcome[rows]
    return rewards


def without_errors(rewards: np.ndarray, errors: np.ndarray, size: int) -> np.ndarray:
    """float32 [B]: the rewards, those of failed rows the mean of their group's others (0 if all of it failed)."""
    if not errors.any():
        return rewards
    groups, here = rewards.reshape(-1, size), ~errors.reshape(-1, size)
    least = np.min(np.where(here, groups, np.inf), axis=1, keepdims=True)
    least = np.where(np.isfinite(least), least, 0.0).astype(np.float32)  # the mean of equal rewards is exactly theirs
    mean = least[:, 0] + np.sum((groups - least) * here, axis=1) / np.maximum(here.sum(axis=1), 1)
    return np.where(here, groups, mean[:, None]).ravel().astype(np.float32)
