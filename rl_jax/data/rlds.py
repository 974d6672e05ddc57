"""Episodes as RLDS has them (TFDS datasets of episodes of steps) as transitions. No jax; TFDS is imported when read.

A step holds observation, action, reward, is_terminal and is_last; its reward is that of its own action. The last step
of an episode has only an observation that counts: the state that the episode ended in. Its action and reward are
invalid by the convention; where a dataset has a reward there all the same, `last_reward` says what becomes of it.
Source: arXiv 2111.02767, google-research/rlds (dataset format).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rl_jax.data.readers import DataError
from rl_jax.data.transitions import Recorded, check

STEP = ("observation", "action", "reward", "is_terminal", "is_last")
LAST_REWARD = ("refuse", "keep", "drop")


def from_episodes(
    episodes: Iterable[Mapping[str, Any]], path: str = "RLDS", *, last_reward: str = "refuse"
) -> Recorded:
    """Transitions of RLDS episodes.

    Args:
      episodes: each with "steps", an iterable of steps.
      path: named in errors.
      last_reward: what becomes of a reward other than 0 of an episode's last step: "refuse" raises, "keep" adds it to
        that of the last transition, "drop" leaves it out.

    Raises:
      DataError: for a step without one of these fields, an observation that is no array, no episodes of two steps, or
        a reward of a last step, as `last_reward` says.
      ValueError: if `last_reward` is something else.
    """
    if last_reward not in LAST_REWARD:
        raise ValueError(f"last_reward={last_reward!r} must be 'refuse', 'keep' or 'drop'")
    columns = {name: [] for name in ("observations", "actions", "rewards", "next_observations", "terminated")}
    columns |= {"truncated": [], "episode": []}
    number = 0
    for index, episode in enumerate(episodes):
        if "steps" not in episode:
            raise DataError(f"{path}, episode {index}: no field 'steps' (it has {sorted(episode)})")
        steps = list(episode["steps"])
        for place, step in enumerate(steps):
            for name in STEP:
                if name not in step:
                    raise DataError(f"{path}, episode {index}, step {place}: no field {name!r} (it has {sorted(step)})")
            if isinstance(step["observation"], Mapping):
                raise DataError(
                    f"{path}, episode {index}, step {place}, field 'observation': a dict of "
                    f"{sorted(step['observation'])}, expected one array"
                )
        extra = _last_reward(f"{path}, episode {index}", steps, last_reward) if steps else 0.0
        if len(steps) < 2:
            continue  # an observation alone is no step
        for step, following in zip(steps[:-1], steps[1:], strict=True):
            last = following is steps[-1]
            columns["observations"].append(step["observation"])
            columns["actions"].append(step["action"])
            columns["rewards"].append(step["reward"] + extra if last and extra else step["reward"])
            columns["next_observations"].append(following["observation"])
            columns["terminated"].append(last and bool(following["is_terminal"]))
            columns["truncated"].append(last and not bool(following["is_terminal"]))
            columns["episode"].append(number)
        number += 1
    if not number:
        raise DataError(f"{path}: no episode of two steps or more")
    try:
        arrays = {name: np.stack([np.asarray(x) for x in column]) for name, column in columns.items()}
    except ValueError as error:
        raise DataError(f"{path}: steps of different shapes ({error})") from error
    return check(path, arrays, {})


def _last_reward(name: str, steps: list[Mapping[str, Any]], last_reward: str) -> float:
    """What the last step's reward adds to that of the last transition. nan, as a placeholder, is none."""
    reward = np.asarray(steps[-1]["reward"], np.float32)
    reward = 0.0 if np.isnan(reward).all() else float(reward.sum())
    if not reward or last_reward == "drop":
        return 0.0
    if last_reward == "refuse":
        raise DataError(
            f"{name}: its last step has the reward {reward}, which no transition of RLDS has: by the convention it is "
            'invalid there. last_reward="keep" adds it to the last transition\'s, "drop" leaves it out'
        )
    if len(steps) < 2:
        raise DataError(f"{name}: one step only, so its reward {reward} has no transition to be added to")
    return reward


def read(path, split: str = "train", *, last_reward: str = "refuse") -> Recorded:
    """Reads a TFDS folder of RLDS episodes, in a format that needs no TensorFlow (array_record).

    Args:
      path: the folder with dataset_info.json.
      split: of it.
      last_reward: as for `from_episodes`.

    Raises:
      DataError: as `from_episodes`, or if the folder is no TFDS dataset.
    """
    import tensorflow_datasets as tfds  # slow to import

    try:
        builder = tfds.builder_from_directory(str(path))
    except (OSError, ValueError, tfds.core.registered.DatasetNotFoundError) as error:
        raise DataError(f"{path}: not a TFDS folder ({error})") from error
    return from_episodes(builder.as_data_source(split=split), str(path), last_reward=last_reward)
