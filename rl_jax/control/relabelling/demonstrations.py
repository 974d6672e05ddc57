"""Demonstrations: the episodes that a run of ours recorded, in its episodes.jsonl. numpy only."""

import json
import pathlib
from typing import NamedTuple

import numpy as np

from rl_jax.data.readers import BadRecords, read_filled_lines


class Demonstrations(NamedTuple):
    """Steps of E episodes, one after the other.

    Attributes:
      observations: float32 [N, D].
      next_observations: float32 [N, D].
      actions: int32 [N] or float32 [N, A], as the environment takes them.
      starts: int [E]. Where each episode begins.
      scores: float32 [E]. The sum of each episode's rewards; nan if the file does not have them.
    """

    observations: np.ndarray
    next_observations: np.ndarray
    actions: np.ndarray
    starts: np.ndarray
    scores: np.ndarray

    def trajectories(self) -> list[np.ndarray]:
        """The observations that the steps of each episode lead to: E arrays float32 [T_e, D]."""
        return np.split(self.next_observations, self.starts[1:])


def read(path: str, *, last: int | None = 1) -> Demonstrations:
    """The last `last` episodes of a file.

    Args:
      path: episodes.jsonl of a run of experiments.control.ppo.
      last: number of episodes, of the best policies; None: all.

    Raises:
      ValueError: if there is no such file, a line is no episode with observations, or there are too few.
    """
    if not path:
        raise ValueError(
            "demonstrations: set algorithm.relabel.demos=RUN/episodes.jsonl of a run of experiments.control.ppo"
        )
    file = pathlib.Path(path)
    if not file.is_file():
        raise ValueError(f"demonstrations: there is no file {path!r}; a run of experiments.control.ppo writes one")
    lines = list(read_filled_lines(file, BadRecords()))
    last = len(lines) if last is None else last
    if len(lines) < last or last < 1:
        raise ValueError(f"demonstrations: {path} has {len(lines)} episodes, last={last} needs as many, and 1 or more")
    episodes = [_episode(path, number, line) for number, line in lines[len(lines) - last :]]
    starts = np.cumsum([0] + [len(x[1]) for x in episodes])[:-1]
    before, after = (
        np.concatenate([part for e in episodes for part in [e[0][s]]]) for s in (slice(-1), slice(1, None))
    )
    scores = np.asarray([e[2] for e in episodes], np.float32)
    return Demonstrations(before, after, np.concatenate([e[1] for e in episodes]), starts, scores)


def _episode(path: str, number: int, line: str) -> tuple[np.ndarray, np.ndarray, float]:
    """(observations [T + 1, D], actions [T, ...], sum of the rewards)."""
    try:
        row = json.loads(line)
        seen, actions = row["observations"], np.asarray(row["actions"])
        if seen is None:
            raise ValueError("its observations were too large to keep")
        if "bits" in seen:
            size = int(np.prod(seen["shape"]))
            rows = [np.frombuffer(bytes.fromhex(text), np.uint8) for text in seen["bits"]]
            observations = np.stack([np.unpackbits(row)[:size] for row in rows]).astype(np.float32)
        else:
            observations = np.asarray(seen["values"], np.float32)
        if observations.ndim != 2 or len(observations) != len(actions) + 1:
            raise ValueError(f"{observations.shape} observations of {len(actions)} actions")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}:{number} is no episode with observations: {error}") from error
    kind = np.int32 if np.issubdtype(actions.dtype, np.integer) else np.float32
    return observations, actions.astype(kind), float(np.sum(row["rewards"])) if "rewards" in row else np.nan
