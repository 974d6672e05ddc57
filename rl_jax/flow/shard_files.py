"""Weights in pieces as files: one per owner, and an index that makes them a version.

    weights/000000000012.json            {"token": "5c81d0f2", "leaves": {"layers/q": ["float32", [8, 6],
                                             [[owner, start, shape], ...]]}}
    weights/000000000012-0003-5c81d0f2.shard      safetensors: the pieces of owner 3, by the name of their array

The index is renamed into place after the shards are there, and removed before them. A reader opens only the shards
that have a part of what it needs, and reads that part of them. A version that is published again has shards of its own,
by the token: who reads by the index of before gets the old ones, or none. Runs of before that had no token.
"""

import json
import pathlib
import secrets
from collections.abc import Mapping, Sequence

import numpy as np
import safetensors
from safetensors.numpy import save_file

from rl_jax.flow import files, payload, shards
from rl_jax.flow.protocol import Params
from rl_jax.flow.shards import Box, Cut, Slices

INDEX, SHARD = ".json", ".shard"


def write(folder: pathlib.Path, version: int, cuts: Mapping[str, Cut]) -> None:
    """Writes a version. An owner has one piece of an array."""
    owners: dict[int, dict[str, np.ndarray]] = {}
    leaves = {}
    for name, cut in cuts.items():
        leaves[name] = [cut.dtype, list(cut.shape), []]
        for piece in cut.pieces:
            own = owners.setdefault(piece.owner, {})
            if name in own:
                raise ValueError(f"params {name!r}: two pieces of owner {piece.owner}")
            own[name] = piece.data
            leaves[name][2].append([piece.owner, list(piece.start), list(piece.data.shape)])
    token = secrets.token_hex(4)
    for owner, own in owners.items():
        files.write(_shard(folder, version, owner, token), lambda path, own=own: save_file(own, path))
    files.write(folder / f"{version:012}{INDEX}", json.dumps({"token": token, "leaves": leaves}))
    for path in folder.glob(f"{version:012}-*{SHARD}"):
        if not path.stem.endswith(token):
            files.remove(path)


def _shard(folder: pathlib.Path, version: int, owner: int, token: str) -> pathlib.Path:
    return folder / f"{version:012}-{owner:04}{token and '-' + token}{SHARD}"


def remove(index: pathlib.Path) -> None:
    """Removes a version. index: or its one file."""
    files.remove(index)
    for path in index.parent.glob(f"{index.stem}-*{SHARD}"):
        files.remove(path)


def remove_partial(folder: pathlib.Path) -> None:
    """Removes shards without an index, which a killed process left over."""
    for path in folder.glob(f"*{SHARD}"):
        if not (folder / f"{path.name.partition('-')[0]}{INDEX}").exists():
            files.remove(path)


def read_weights(path: pathlib.Path) -> Params | None:
    """Whole arrays of a version; None if a newer one has just replaced it. path: its index, or its one file."""
    if path.suffix != INDEX:
        return files.read_weights(path)
    if (slices := open_slices(path)) is None:
        return None
    boxes = [(name, (0,) * len(shape), shape) for name, (shape, _) in slices.leaves.items()]
    try:
        return payload.nest(dict(zip(slices.leaves, slices.read(boxes), strict=True)))
    except FileNotFoundError:
        return None


def open_slices(path: pathlib.Path) -> Slices | None:
    """The Slices of a version; None if a newer one has just replaced it. ValueError if a file is damaged."""
    return _of_index(path) if path.suffix == INDEX else _of_one(path)


def _of_index(index: pathlib.Path) -> Slices | None:
    if (words := files.read_json(index, default=None)) is None:
        return None
    version, found, token = int(index.stem), words["leaves"], words.get("token", "")

    def read(boxes: Sequence[Box]) -> list[np.ndarray]:
        opened = {}

        def part(name: str, places: list, i: int, inside: tuple[slice, ...]) -> np.ndarray:
            owner, _, shape = places[i]
            path = _shard(index.parent, version, owner, token)
            if path not in opened:
                opened[path] = _open(path)
            try:
                piece = opened[path].get_slice(name)
                if piece.get_shape() != shape:
                    raise ValueError(
                        f"{path}: not the shard of its index ({name!r} of shape {piece.get_shape()}, not {shape})"
                    )
                return piece[inside] if inside else opened[path].get_tensor(name)
            except safetensors.SafetensorError as error:
                raise ValueError(f"{path}: not the shard of its index ({error})") from error

        values = []
        for name, start, stop in boxes:
            dtype, _, places = found[name]
            where = [(corner, shape) for _, corner, shape in places]
            values.append(
                shards.fill(dtype, start, stop, where, lambda i, box, n=name, places=places: part(n, places, i, box))
            )
        return values

    return Slices(version, {name: (tuple(shape), dtype) for name, (dtype, shape, _) in found.items()}, read)


def _of_one(path: pathlib.Path) -> Slices | None:
    """Of a file of whole arrays."""
    try:
        opened = _open(path)
    except FileNotFoundError:
        return None
    leaves = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118  not a mapping

    def read(boxes: Sequence[Box]) -> list[np.ndarray]:
        found = []
        for name, start, stop in boxes:
            box = tuple(slice(a, b) for a, b in zip(start, stop, strict=True))
            is_whole = tuple(stop) == shapes[name][0] and not any(start)
            found.append(opened.get_tensor(name) if is_whole else opened.get_slice(name)[box])
        return found

    shapes = {name: (tuple(leaf.get_shape()), DTYPES[leaf.get_dtype()]) for name, leaf in leaves.items()}
    return Slices(int(path.stem), shapes, read)


def _open(path: pathlib.Path):
    try:
        return safetensors.safe_open(path, framework="numpy")
    except FileNotFoundError:
        raise
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path}: truncated or not weights ({error})") from error


DTYPES = {  # names of safetensors
    **{"BOOL": "bool", "F16": "float16", "F32": "float32", "F64": "float64", "BF16": "bfloat16"},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
