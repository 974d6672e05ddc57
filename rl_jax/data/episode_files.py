"""Folders of episodes, one npz each, whose row i is what action i led to: as D5RL's kitchens. Ground layer: no jax.

    observations[i - 1], action[i], reward[i], observations[i]        a step, i = 1 .. T - 1

Source: arXiv 2408.08441, d5rlbenchmark/d5rl (load_episode, load_data). Only the fields that are asked for are opened,
so objects beside them need no pickle. There the last step of an episode counts as the end of the task; here as the end
of the recording.
"""

import pathlib
import zipfile

import numpy as np

from rl_jax.data.readers import DataError, refuse_pipe
from rl_jax.data.transitions import Recorded, check


def read(path, *, observation: str = "proprio", terms: tuple[str, ...] = ()) -> Recorded:
    """The steps of all npz in a folder and in folders of it; each folder of files is a source.

    Args:
      path: of the folder.
      observation: the field that is observed, [T, ...].
      terms: names of objects whose rewards, the fields "reward NAME" [T], are summed; (): the field "reward".

    Raises:
      DataError: if there is no file, one is not readable, or a field is missing or misshapen; it names file and field.
    """
    path = pathlib.Path(path).expanduser()
    refuse_pipe(path)
    files = sorted(path.rglob("*.npz")) if path.is_dir() else []
    if not files:
        raise DataError(f"{path}: no folder with episodes, one npz each")
    folders = sorted({file.parent for file in files})
    names = [f"reward {name}" for name in terms] or ["reward"]
    rows = {key: [] for key in ("observations", "next_observations", "actions", "rewards", "episode", "source")}
    for index, file in enumerate(files):
        found = _fields(file, [observation, "action", *names])
        seen, actions, rewards = found[0], found[1], np.sum(found[2:], axis=0)
        rows["observations"].append(seen[:-1])
        rows["next_observations"].append(seen[1:])
        rows["actions"].append(actions[1:])
        rows["rewards"].append(rewards[1:])
        rows["episode"].append(np.full(len(seen) - 1, index))
        rows["source"].append(np.full(len(seen) - 1, folders.index(file.parent)))
    shapes = {(x.shape[1:], y.shape[1:]) for x, y in zip(rows["observations"], rows["actions"], strict=True)}
    if len(shapes) > 1:
        raise DataError(f"{path}: episodes of different shapes of (observation, action): {sorted(shapes)}")
    arrays = {key: np.concatenate(x) for key, x in rows.items()}
    none = np.zeros(len(arrays["rewards"]), bool)
    sources = [str(folder.relative_to(path)) for folder in folders]
    return check(path, arrays | dict(terminated=none, truncated=none.copy()), {"sources": sources})


def _fields(file: pathlib.Path, names: list[str]) -> list[np.ndarray]:
    """Fields of one file, all [T, ...] with T of 2 or more."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            for name in names:
                if name not in arrays.files:
                    raise DataError(f"{file}: no field {name!r} (it has {sorted(arrays.files)})")
            found = [arrays[name] for name in names]
    except DataError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{file}: not a readable npz of plain arrays ({error}): fetch it again") from error
    lengths = {len(x) if x.ndim else 0 for x in found}
    if len(lengths) > 1 or min(lengths) < 2:
        raise DataError(f"{file}: fields {', '.join(names)} have {sorted(lengths)} rows, expected one number above 1")
    return found
