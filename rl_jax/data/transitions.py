"""Files of transitions: our own npz, and the HDF5 layouts of Minari and D4RL. Ground layer: no jax.

    write(path, recorded)        one npz: the arrays, and the metadata as a JSON text; no pickle
    read(path)                   .npz, .hdf5, .h5, or a folder: all its npz, or Minari's data/main_data.hdf5

Whatever the layout, the result is a `Recorded`: N steps, those of an episode one after the other. h5py is imported
when an HDF5 file is read.
"""

import json
import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rl_jax.data.readers import DataError, refuse_pipe
from rl_jax.data.writing import write_arrays

FORMAT = "rl_jax transitions 1"
# name -> (dtype kinds that are taken, dtype that is kept; None keeps it)
FIELDS = {
    "observations": ("fiub", None),
    "actions": ("fiu", None),
    "rewards": ("fiu", np.float32),
    "next_observations": ("fiub", None),
    "terminated": ("biu", np.bool_),
    "truncated": ("biu", np.bool_),
    "episode": ("iu", np.int32),
    "source": ("iu", np.int32),
    "behaviour": ("iu", np.int32),
}


class Recorded(NamedTuple):
    """N steps of recorded episodes, as numpy arrays.

    Attributes:
      observations: float32 or uint8 [N, *shape].
      actions: int32 [N], or float32 [N, A] in the environment's units.
      rewards: float32 [N].
      next_observations: [N, *shape], before any reset.
      terminated: bool [N].
      truncated: bool [N].
      episode: int32 [N], 0, 1, ...; the steps of an episode stand together and in order.
      source: int32 [N], an index into metadata["sources"]: the file or generator.
      behaviour: int32 [N], an index into metadata["behaviours"]: the policy that acted.
      metadata: what is known of it, as JSON has it: "env", "sources", "behaviours".
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    episode: np.ndarray
    source: np.ndarray
    behaviour: np.ndarray
    metadata: dict[str, Any]


def check(path, arrays: Mapping[str, np.ndarray], metadata: dict[str, Any] | None = None) -> Recorded:
    """A Recorded of these arrays, with dtypes made those that we use.

    Args:
      path: named in errors.
      arrays: those of `Recorded`; episode, source and behaviour may be missing.
      metadata: of it.

    Raises:
      DataError: for a missing, misshapen or non-finite field; it names file, field and shape.
    """
    arrays = {name: np.asarray(x) for name, x in arrays.items()}
    required = list(FIELDS)[:6]
    for name in required:
        if name not in arrays:
            raise DataError(f"{path}: no field {name!r} (it has {sorted(arrays)}); the fields are {', '.join(FIELDS)}")
    count = len(arrays["rewards"]) if arrays["rewards"].ndim else 0
    if not count:
        raise DataError(f"{path}, field 'rewards': shape {arrays['rewards'].shape}, expected [N] with N of 1 or more")
    result = {}
    for name, (kinds, dtype) in FIELDS.items():
        x = arrays.get(name, np.zeros(count, np.int32))
        if name == "episode" and name not in arrays:
            done = result["terminated"] | result["truncated"]
            x = np.cumsum(np.concatenate([[False], done[:-1]]))
        if x.ndim == 2 and x.shape[1] == 1 and dtype is not None:
            x = x[:, 0]  # columns, as some files have rewards
        wanted = (count,) if dtype is not None else (count, *x.shape[1:])
        if x.shape != wanted:
            raise DataError(f"{path}, field {name!r}: shape {x.shape}, expected {wanted}: {count} steps have rewards")
        if x.dtype.kind not in kinds:
            raise DataError(f"{path}, field {name!r}: dtype {x.dtype}, expected a number")
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            where = int(np.argwhere(~np.isfinite(x))[0][0])
            raise DataError(f"{path}, field {name!r}, step {where}: {x[where]} is not finite")
        result[name] = x.astype(dtype or _kept(name, x))
    if result["next_observations"].shape != result["observations"].shape:
        raise DataError(
            f"{path}, field 'next_observations': shape {result['next_observations'].shape}, expected that of "
            f"observations, {result['observations'].shape}"
        )
    _check_episodes(path, result["episode"])
    ends = np.append(np.diff(result["episode"]) > 0, True)  # an episode without an end: its recording stopped there
    result["truncated"] |= ends & ~result["terminated"]
    return Recorded(**result, metadata={"format": FORMAT, "sources": [str(path)], **(metadata or {})})


def write(path, recorded: Recorded) -> None:
    """Writes one npz, as a whole or not at all."""
    path = pathlib.Path(path)
    check(path, recorded._asdict() | {"metadata": 0}, recorded.metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: getattr(recorded, name) for name in FIELDS}
    write_arrays(path, {"metadata": np.asarray(json.dumps(recorded.metadata)), **arrays}, compressed=True)


def read(path, *, episode_length: int = 0) -> Recorded:
    """Reads a file or folder of transitions, whatever its layout.

    Args:
      path: of it.
      episode_length: for D4RL's layout, as for `read_hdf5`.

    Raises:
      DataError: if there is none, its layout is unknown, or a field is wrong.
      ImportError: for an HDF5 file without h5py; the message says what to install.
    """
    path = pathlib.Path(path).expanduser()
    refuse_pipe(path)
    if path.is_dir():
        inside = path / "data" / "main_data.hdf5" if (path / "data").is_dir() else path / "main_data.hdf5"
        if inside.is_file():
            return read_hdf5(inside, episode_length=episode_length)
        parts = sorted(path.glob("*.npz"))
        if not parts:
            raise DataError(f"{path}: a folder without *.npz or Minari's data/main_data.hdf5")
        return joined([read_npz(part) for part in parts])
    if not path.is_file():
        raise DataError(f"{path}: no such file; control.ppo --config.record.path=FOLDER records one")
    if path.suffix in (".hdf5", ".h5"):
        return read_hdf5(path, episode_length=episode_length)
    return read_npz(path)


def read_npz(path) -> Recorded:
    """Reads what `write` wrote. Raises DataError if it is something else."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not a readable npz of plain arrays ({error}): record or fetch it again") from error
    text = arrays.pop("metadata", None)
    try:
        metadata = json.loads(str(text)) if text is not None else {}
    except ValueError as error:
        raise DataError(f"{path}, field 'metadata': not JSON ({error})") from error
    if not isinstance(metadata, dict):
        raise DataError(f"{path}, field 'metadata': expected a JSON object, found {type(metadata).__name__}")
    return check(path, arrays, metadata)


def joined(parts: list[Recorded]) -> Recorded:
    """All of them as one; episodes, sources and behaviours are counted on.

    Raises:
      DataError: if their observations or actions differ in shape or dtype.
    """
    first, arrays, names = parts[0], {name: [] for name in FIELDS}, {"sources": [], "behaviours": []}
    episodes = 0
    for part in parts:
        for name in ("observations", "actions"):
            own, other = getattr(part, name), getattr(first, name)
            if own.shape[1:] != other.shape[1:] or own.dtype != other.dtype:
                raise DataError(
                    f"{part.metadata['sources'][0]}, field {name!r}: {own.dtype} {own.shape[1:]} per step, but "
                    f"{first.metadata['sources'][0]} has {other.dtype} {other.shape[1:]}"
                )
        for name in FIELDS:
            arrays[name].append(getattr(part, name))
        arrays["episode"][-1] = part.episode - part.episode[0] + episodes
        episodes = int(arrays["episode"][-1][-1]) + 1
        for name, field in (("sources", "source"), ("behaviours", "behaviour")):
            arrays[field][-1] = arrays[field][-1] + len(names[name])
            names[name] += part.metadata.get(name) or [""]
    metadata = {**first.metadata, **names}
    return Recorded(**{name: np.concatenate(x) for name, x in arrays.items()}, metadata=metadata)


def read_hdf5(path, *, episode_length: int = 0) -> Recorded:
    """Reads Minari's layout (a group per episode) or D4RL's (flat arrays), whichever the file has.

    Args:
      path: of the file.
      episode_length: the step limit of the environment (its max_episode_steps), by which episodes of a D4RL file
        without timeouts were cut off. 0: not known.

    Raises:
      DataError: for another layout, a wrong field, or a D4RL file that says neither what followed a step nor where
        episodes were cut off, without an `episode_length`.
      ImportError: without h5py.
    """
    try:
        import h5py
    except ImportError as error:
        raise ImportError(f"{path}: reading HDF5 needs h5py: pip install h5py (the extra rl_jax[offline])") from error
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{path}: not a readable HDF5 file ({error}): fetch it again") from error
    with file:
        if "episode_0" in file:
            return _minari(path, file)
        if "observations" in file and "terminals" in file:
            return _d4rl(path, file, episode_length)
        raise DataError(
            f"{path}: neither Minari's layout (groups episode_0, episode_1, ...) nor D4RL's (observations, actions, "
            f"rewards, terminals); it has {sorted(file)[:8]}"
        )


def _minari(path, file) -> Recorded:
    names = sorted((name for name in file if name.startswith("episode_")), key=lambda x: int(x.partition("_")[2]))
    rows = []
    for name in names:
        group = file[name]
        fields = {key: _array(path, group, key) for key in ("observations", "actions", "rewards")}
        ends = [_array(path, group, key).astype(bool) for key in ("terminations", "truncations")]
        steps = len(fields["rewards"])
        if len(fields["observations"]) != steps + 1:
            raise DataError(
                f"{path}, field '{name}/observations': shape {fields['observations'].shape}, expected "
                f"{steps + 1} observations for {steps} rewards"
            )
        if not steps:
            continue  # an observation alone; episodes are numbered without it
        if not (ends[0][-1] or ends[1][-1]):
            ends[1][-1] = True  # recording stopped there
        observations = fields.pop("observations")
        rows.append(
            fields
            | dict(observations=observations[:-1], next_observations=observations[1:])
            | dict(terminated=ends[0], truncated=ends[1] & ~ends[0], episode=np.full(steps, len(rows)))
        )
    if not rows:
        raise DataError(f"{path}: no episode of a step or more")
    arrays = {}
    for key in rows[0]:
        shapes = {row[key].shape[1:] for row in rows}
        if len(shapes) > 1:
            raise DataError(f"{path}, field {key!r}: episodes of different shapes {sorted(shapes)}")
        arrays[key] = np.concatenate([row[key] for row in rows])
    metadata = {key: str(x) for key, x in file.attrs.items() if key in ("env_spec", "dataset_id")}
    return check(path, arrays, metadata)


def _d4rl(path, file, episode_length: int) -> Recorded:
    """As d4rl.qlearning_dataset: without next_observations the next row's; a step cut off there has none and goes.

    Without timeouts an episode is cut off at its step number `episode_length`, counted from 1 after each end (d4rl's
    loop counts from 2 after a terminal, so it cuts the next episode a step early).
    """
    arrays = {key: _array(path, file, key) for key in ("observations", "actions", "rewards", "terminals")}
    arrays["terminated"] = arrays.pop("terminals").astype(bool).reshape(-1)
    count = len(arrays["rewards"])
    for key, x in arrays.items():
        if len(x) != count:
            raise DataError(f"{path}, field {key!r}: shape {x.shape}, expected {count} rows: as many have rewards")
    if "timeouts" in file:
        cut = _array(path, file, "timeouts").astype(bool).reshape(-1)
    elif episode_length or "next_observations" in file:
        cut = _cut_off(arrays["terminated"], episode_length)
    else:
        raise DataError(
            f"{path}: no field 'timeouts' and no 'next_observations', so steps would lead from the end of an episode "
            "to the start of the next: give episode_length (dataset.episode_length), the step limit of the environment"
        )
    if len(cut) != count:
        raise DataError(f"{path}, field 'timeouts': shape {cut.shape}, expected {count} rows")
    arrays["truncated"] = cut & ~arrays["terminated"]
    done = arrays["terminated"] | arrays["truncated"]
    arrays["episode"] = np.cumsum(np.concatenate([[False], done[:-1]]))
    if "next_observations" in file:
        arrays["next_observations"] = _array(path, file, "next_observations")
        arrays["truncated"][-1] |= not done[-1]
        return check(path, arrays, {})
    observations = arrays["observations"]
    arrays["next_observations"] = np.concatenate([observations[1:], observations[-1:]])
    known = ~arrays["truncated"]
    known[-1] = arrays["terminated"][-1]
    # The last step that is left of an episode that was cut off ends it now.
    arrays["truncated"] = np.concatenate([(~known[1:]) & ~arrays["terminated"][:-1], [False]])
    arrays = {key: x[known] for key, x in arrays.items()}
    arrays["episode"] = np.unique(arrays["episode"], return_inverse=True)[1]
    return check(path, arrays, {})


def _cut_off(terminated: np.ndarray, episode_length: int) -> np.ndarray:
    """Whether a step is the last one that an episode of at most `episode_length` steps (0: any number) may have."""
    if not episode_length:
        return np.zeros(len(terminated), bool)
    number = np.arange(len(terminated))
    begins = np.concatenate([[True], terminated[:-1]])
    since = number - np.maximum.accumulate(np.where(begins, number, 0))  # the last terminal
    return since % episode_length == episode_length - 1


def _array(path, group, key: str) -> np.ndarray:
    if key not in group:
        raise DataError(f"{path}: no field {key!r} in {group.name} (it has {sorted(group)})")
    if not hasattr(group[key], "shape"):
        raise DataError(f"{path}, field {key!r}: a group of {sorted(group[key])}, expected one array per episode")
    return np.asarray(group[key])


def _kept(name: str, x: np.ndarray):
    if x.dtype.kind == "f":
        return np.float32
    return np.int32 if name == "actions" else np.uint8 if x.dtype == np.uint8 else np.float32


def _check_episodes(path, episode: np.ndarray) -> None:
    jumps = np.diff(episode)
    if (jumps < 0).any() or (jumps > 1).any():
        where = int(np.argmax((jumps < 0) | (jumps > 1)))
        raise DataError(
            f"{path}, field 'episode': {episode[where]} is followed by {episode[where + 1]} at step {where + 1}; the "
            "steps of an episode stand together, and episodes are numbered 0, 1, 2, ..."
        )
