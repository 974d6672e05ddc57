"""Pseudo labels of a robot's key states, from recorded successes: the data of VLA-RL's process reward model. No jax.

    y_t = 1 if a key state is reached by one of the actions t, ..., t + lead - 1, else 0
    key state: the gripper has opened or closed, or the hand stands still

Nobody labels anything: an episode of experiments.agents that succeeded, whose environment counts `gripper` and `speed`
in each turn, has all that is needed. A step is what the policy said and what it read after it, as the token ids that
were sampled and read. Source: arXiv 2505.18719 (milestones by the gripper's opening, progress by near-zero velocity of
the hand); how many actions before a key state count could not be read (lead), and the released code (GuanxingLu/vlarl)
has no training of the model.
"""

import pathlib
from collections.abc import Sequence

import numpy as np

from rl_jax.data.readers import DataError
from rl_jax.experience.trajectory import Trajectory
from rl_jax.preferences.episodes import FOLDER, Source, groups
from rl_jax.preferences.sources import Preferences, prompt_share

SENSED = ("gripper", "speed")


def key_states(
    gripper: np.ndarray, speed: np.ndarray, acted: np.ndarray, *, start: float = 0.0, still: float = 0.0
) -> np.ndarray:
    """Which actions end in a key state.

        k_t = acted_t and (g_t != g_t-1 or v_t <= still),   g_-1 = start

    Args:
      gripper: float [T], g after each action: 1 closed, 0 open.
      speed: float [T], v of the hand in each action.
      acted: bool [T]. False if what was said was no action: then nothing moves, and nothing is reached.
      start: the gripper before the first action.
      still: the speed up to which the hand stands still; below 0: only the gripper counts.

    Returns:
      bool [T].

    Raises:
      ValueError: if the arrays are not of one length.
    """
    gripper, speed, acted = np.asarray(gripper, float), np.asarray(speed, float), np.asarray(acted, bool)
    if not gripper.shape == speed.shape == acted.shape or gripper.ndim != 1:
        raise ValueError(f"gripper {gripper.shape}, speed {speed.shape} and acted {acted.shape} must be of one length")
    changed = np.diff(gripper, prepend=start) != 0
    return acted & (changed | (speed <= still))


def pseudo_labels(keys: np.ndarray, *, lead: int = 1) -> np.ndarray:
    """1 for the last `lead` actions up to each key state, the one that reaches it included. bool [T] -> int [T].

    Raises:
      ValueError: if lead is below 1.
    """
    if lead < 1:
        raise ValueError(f"lead={lead} must be 1 or more: the action that reaches a key state is always labelled")
    keys = np.asarray(keys, bool)
    ahead = np.concatenate([keys, np.zeros(lead - 1, bool)])
    return np.stack([ahead[shift : shift + len(keys)] for shift in range(lead)]).any(axis=0).astype(int)


def load(
    *,
    path: str,
    least: float = 0.5,
    still: float = 0.0,
    lead: int = 1,
    newest: int = 0,
    test_share: float = 0.1,
    data_dir: str = "",
) -> Preferences:
    """Labelled steps of the successes among a run's recorded episodes.

    Args:
      path: workdir of a run with agent.record=true, or its folder `trajectories`.
      least: the reward of an episode that succeeded.
      still: as in `key_states`.
      lead: as in `pseudo_labels`.
      newest: how many of the newest steps of the run are read. 0: all.
      test_share: of the prompts.
      data_dir: unused; other data is stored there.

    Returns:
      Preferences of kind "steps".

    Raises:
      ValueError: if a setting is out of its range.
      DataError: if no recorded episode succeeded, or the environment does not count what is sensed.
    """
    del data_dir
    if not 0 <= test_share < 1 or newest < 0 or lead < 1:
        raise ValueError(f"test_share={test_share} must be in [0, 1), newest={newest} 0 or more, lead={lead} 1 or more")
    records, folder, seen = {"train": [], "test": []}, pathlib.Path(path), 0
    if not any(file for place in (folder, folder / FOLDER) for file in place.glob("*.parquet")):
        smoke = ",smoke" if folder.name.startswith("smoke_") else ""
        raise DataError(
            f"{folder} has no recorded episodes (*.parquet): record them with python -m experiments.agents "
            f"--config=configs/agents_papers.py:vla_rl,alone{smoke} --workdir={folder}, or those of your own robot "
            "with --config.agent.record=true"
        )
    for group in groups(folder, newest):
        for one in group:
            seen += 1
            if one.reward < least or len(one.segments) > 1:
                continue
            record = labelled_steps(one, still=still, lead=lead)
            if record is None:
                raise DataError(f"{folder}: its environment does not count {' and '.join(SENSED)} in each turn")
            share = prompt_share(" ".join(map(str, record["prompt"]["ids"])))
            records["test" if share < test_share else "train"].append(record)
    if not records["train"]:
        raise DataError(
            f"{folder}: none of {seen} recorded episodes has a reward of {least}; record more, or lower data.least"
        )
    return Preferences("milestones", "steps", lambda split: Source(records[split], "steps"))


def labelled_steps(one: Trajectory, *, still: float = 0.0, lead: int = 1) -> dict | None:
    """An episode of one segment as a record of kind "steps", its steps as ids; None if a turn lacks what is sensed."""
    if any(name not in turn.numbers for turn in one.turns for name in SENSED):
        return None
    gripper, speed = (np.array([turn.numbers[name] for turn in one.turns]) for name in SENSED)
    acted = np.array([not turn.numbers.get("malformed", 0.0) for turn in one.turns])
    labels = pseudo_labels(key_states(gripper, speed, acted, still=still), lead=lead)
    prompt, *spans = one.segments[0]
    steps = [dict(ids=ids) for ids in _steps(spans)]
    return {"prompt": {"ids": prompt.ids.tolist()}, "steps": steps, "labels": labels.tolist(), "info": {}}


def _steps(spans: Sequence) -> list[list[int]]:
    """The ids of each turn, with those of the answer that follows it."""
    steps: list[list[int]] = []
    for span in spans:
        if span.kind == "sampled":
            steps.append([])
        steps[-1] += span.ids.tolist()
    return steps
