"""The safetensors files of a folder: a single file, or shards with an index.

Headers are read and checked at once, tensors when they are requested, and only the requested part of them.
"""

import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import safetensors
from safetensors.numpy import save_file

from rl_jax.data import plain_files

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_HEADER = 32 << 20  # bytes of a file's header; those of the largest models have some 100,000
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # as safetensors calls them


def read_json(path: pathlib.Path) -> dict:
    """A JSON object. Raises ValueError, naming the file, if there is none."""
    try:
        content = plain_files.read_json(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}): give a Hugging Face model folder") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content


class TensorFiles:
    """The tensors of a folder by name.

    Args:
      folder: of the model.
      skip: endings of names that are left out, of whatever dtype: buffers that are no weights.

    Attributes:
      shapes: of every tensor, from the headers.
      dtypes: of every tensor, from the headers.

    Raises:
      ValueError: if there is no file, a shard is missing or truncated, the index and the shards disagree, or a dtype is
        not in DTYPES.
    """

    def __init__(self, folder: pathlib.Path, *, skip: tuple[str, ...] = ()):
        self.folder, self._skip = folder, skip
        self._files, self._file_of = {}, {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        if (folder / SINGLE).exists():
            self._open(SINGLE)
            return
        if not (folder / INDEX).exists():
            raise ValueError(
                f"{folder} has neither {SINGLE} nor {INDEX}; other formats (pytorch_model.bin is a pickle) are "
                "not read: save the model again with safe_serialization"
            )
        weight_map = read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ValueError(
                f"{folder / INDEX}, field 'weight_map': expected an object that maps tensor names to files"
            )
        for name, shard in weight_map.items():
            if not isinstance(shard, str):
                raise ValueError(f"{folder / INDEX}: {name!r} should be in a file, not in {shard!r:.60}")
        weight_map = {name: shard for name, shard in weight_map.items() if not name.endswith(skip)}
        for shard in sorted(set(weight_map.values())):
            if pathlib.PurePath(shard).name != shard or not (folder / shard).exists():
                raise ValueError(f"{folder / INDEX}: the shard {shard!r} is not in the folder: fetch it")
            self._open(shard)
        for name in sorted(set(weight_map) | set(self._file_of)):
            if weight_map.get(name) != self._file_of.get(name):
                raise ValueError(
                    f"{folder / INDEX}: {name!r} should be in {weight_map.get(name)}, but is in "
                    f"{self._file_of.get(name)}: the folder mixes two checkpoints"
                )

    def _open(self, file: str) -> None:
        path = self.folder / file
        _check_header(path)
        try:
            self._files[file] = opened = safetensors.safe_open(path, "numpy")
        except (safetensors.SafetensorError, OSError) as error:
            raise ValueError(f"{path}: truncated or not a safetensors file ({error}): fetch it again") from error
        for name in opened.keys():  # noqa: SIM118 (not a dict)
            if name.endswith(self._skip):
                continue
            header = opened.get_slice(name)
            self._file_of[name] = file
            self.shapes[name], self.dtypes[name] = tuple(header.get_shape()), header.get_dtype()
            if self.dtypes[name] not in DTYPES:
                raise ValueError(f"{path}: {name!r} is {self.dtypes[name]}, only {', '.join(DTYPES)} are read")

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A part of one tensor; nothing else is read."""
        return self._files[self._file_of[name]].get_slice(name)[index]


def _check_header(path: pathlib.Path) -> None:
    """Checks the kind of a file and the length of its header, before the package reads it whole."""
    try:
        plain_files.check_regular(path)
        with open(path, "rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
        size = path.stat().st_size
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}): fetch it again") from error
    if length > min(MAX_HEADER, max(size - 8, 0)):
        raise ValueError(
            f"{path}: truncated or not a safetensors file (a header of {length} bytes, with {size} in the file and at "
            f"most {MAX_HEADER} allowed): fetch it again"
        )


def save_tensors(
    folder: pathlib.Path, sizes: Mapping[str, int], tensors: Iterable[tuple[str, np.ndarray]], max_shard_bytes: int
) -> None:
    """Writes one file, or shards of at most `max_shard_bytes` (a larger tensor gets its own) and their index.

    Host memory: one shard.

    Args:
      folder: of the files.
      sizes: bytes of each tensor, in the order of `tensors`.
      tensors: (name, tensor) pairs.
      max_shard_bytes: of the tensors in one file.
    """
    shards: list[list[str]] = [[]]
    for name, size in sizes.items():
        if shards[-1] and sum(sizes[n] for n in shards[-1]) + size > max_shard_bytes:
            shards.append([])
        shards[-1].append(name)
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    names = names if len(shards) > 1 else [SINGLE]
    stream: Iterator[tuple[str, np.ndarray]] = iter(tensors)
    for file, shard in zip(names, shards, strict=True):
        save_file(dict(next(stream) for _ in shard), folder / file, metadata={"format": "pt"})
    if len(shards) > 1:
        weight_map = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
