"""Episodes as RLDS has them (TFDS datasets of episodes of steps) as transitions. No jax; TFDS is imported when read.

A step holds observation, action, reward, is_terminal and is_last; its reward is that of its own action. The last step
of an episode has only an observation that counts: the state that the episode ended in. Source: arXiv 2111.02767.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rl_jax.data.readers import DataError
from rl_jax.data.transitions import Recorded, check

STEP = ("observation", "action", "reward", "is_terminal", "is_last")


def from_episodes(episodes: Iterable[Mapping[str, Any]], path: str = "RLDS") -> Recorded:
    """Transitions of RLDS episodes.

    Args:
      episodes: each with "steps", an iterable of steps.
      path: named in errors.

    Raises:
      DataError: for a step without one of these fields, an observation that is no array, or no episodes of two steps.
    """
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
        if len(steps) < 2:
            continue  # an observation alone is no step
        for step, following in zip(steps[:-1], steps[1:], strict=True):
            last = following is steps[-1]
            columns["observations"].append(step["observation"])
            columns["actions"].append(step["action"])
            columns["rewards"].append(step["reward"])
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


def read(path, split: str = "train") -> Recorded:
    """Reads a TFDS folder of RLDS episodes, in a format that needs no TensorFlow (array_record).

    Args:
      path: the folder with dataset_info.json.
      split: of it.

    Raises:
      DataError: as `from_episodes`, or if the folder is no TFDS dataset.
    """
    import tensorflow_datasets as tfds  # slow to import

    try:
        builder = tfds.builder_from_directory(str(path))
    except (OSError, ValueError, tfds.core.registered.DatasetNotFoundError) as error:
        raise DataError(f"{path}: not a TFDS folder ({error})") from error
    return from_episodes(builder.as_data_source(split=split), str(path))
