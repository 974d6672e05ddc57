"""Recorded episodes as rows of episodes.jsonl. numpy only."""

from typing import Any

import numpy as np

EPISODES = "episodes"


MAX_NUMBERS = 512  # per observation that is kept; a binary one may have 16 times as many


def episode_row(episode, *, step: int, env: str) -> dict[str, Any]:
    """One row of episodes.jsonl: a recorded episode up to its end.

    Args:
      episode: rollout.episode.Episode, as numpy arrays.
      step: updates of its policy so far.
      env: the environment's name.
    """
    length = int(episode.length)
    observations = np.concatenate([episode.observations[:length], episode.last[None]])
    return {
        "step": step,
        "env": env,
        "observations": _packed(observations),
        "actions": _short(episode.actions[:length]),
        "rewards": _short(episode.rewards[:length]),
        "terminated": bool(episode.terminated),
        "truncated": bool(episode.truncated),
    }


def _short(values: np.ndarray) -> list:
    """Nested lists of numbers; floats with six digits."""
    if np.issubdtype(values.dtype, np.integer):
        return values.tolist()
    return [_short(row) if row.ndim else float(f"{row:.6g}") for row in values]


def _packed(observations: np.ndarray) -> dict[str, Any] | None:
    """Observations [T + 1, *shape] as {"shape", "values" or "bits"}; None if they are too large to keep."""
    shape, size = observations.shape[1:], observations[0].size
    flat = observations.reshape(len(observations), -1)
    if len(shape) > 1 and size <= 16 * MAX_NUMBERS and np.isin(flat, (0, 1)).all():
        return {"shape": shape, "bits": [np.packbits(row.astype(bool)).tobytes().hex() for row in flat]}
    return {"shape": shape, "values": _short(flat)} if size <= MAX_NUMBERS else None
