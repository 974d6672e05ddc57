"""Weights in pieces: each side holds, writes and reads parts of an array, and nobody the whole of it. No jax.

    trainer, fsdp:4                                    sampler, tensor:2
    publish(v, {"q": Cut((8, 6), "float32",            slices = link.slices(v)
        [Piece((0, 0), rows 0-1, owner 0),             slices.leaves["q"]               ((8, 6), "float32")
         Piece((2, 0), rows 2-3, owner 1), ...])})     slices.read([("q", (0, 0), (8, 3))])

The pieces of an array are disjoint boxes that cover it. A reader names the boxes that its own devices need; where the
cuts of the two sides differ, a box is put together from the parts of the pieces that lie in it. What LlamaRL's direct
weight synchronisation avoids is avoided here too, a gather of whole arrays (arXiv 2505.24034); the path from device to
device is not theirs, as everything goes through the hosts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_jax.flow import payload
from rl_jax.flow.protocol import Params

Box = tuple[str, tuple[int, ...], tuple[int, ...]]  # name of an array, first corner, end


class Piece(NamedTuple):
    """A box of an array.

    Attributes:
      start: its first corner.
      data: its values.
      owner: the device that held it; a folder has one file per owner.
    """

    start: tuple[int, ...]
    data: np.ndarray
    owner: int = 0


class Cut(NamedTuple):
    """An array in pieces, as a leaf of the params that a trainer publishes.

    Attributes:
      shape: of the whole.
      dtype: its name, one of payload.DTYPES.
      pieces: disjoint, and together the whole.
    """

    shape: tuple[int, ...]
    dtype: str
    pieces: Sequence[Piece]


class Slices:
    """Weights of one version, of which a side reads what it needs.

    Args:
      version: of the weights.
      leaves: name -> (shape, dtype) of each array; a name is a path as "layers/q".
      read: boxes -> their values; see `read`.

    Attributes:
      version: of the weights.
      leaves: name -> (shape, dtype).
    """

    def __init__(
        self,
        version: int,
        leaves: Mapping[str, tuple[tuple[int, ...], str]],
        read: Callable[[Sequence[Box]], list[np.ndarray]],
    ):
        self.version, self.leaves, self._read = version, dict(leaves), read

    def read(self, boxes: Sequence[Box]) -> list[np.ndarray]:
        """The values of these boxes, in one request.

        Args:
          boxes: (name, first corner, end) of each.

        Raises:
          ValueError: if there is no such array, a box is not inside it, or pieces of it are missing.
          FileNotFoundError: if newer versions have replaced this one meanwhile.
        """
        for name, start, stop in boxes:
            check_box(self.leaves, name, start, stop)
        return self._read(boxes)


def check_box(leaves: Mapping[str, tuple[tuple[int, ...], str]], name: str, start, stop) -> None:
    """Raises ValueError if a box is not one of these arrays."""
    if name not in leaves:
        raise ValueError(f"no array {name!r:.80} among {sorted(leaves)[:4]} ...")
    shape = leaves[name][0]
    fits = len(start) == len(stop) == len(shape)
    if not fits or any(not 0 <= a <= b <= size for a, b, size in zip(start, stop, shape, strict=True)):
        raise ValueError(f"{name!r:.80}[{tuple(start)} to {tuple(stop)}] is no box of an array of shape {shape}")


def cuts_of(params: Params) -> dict[str, Cut]:
    """The arrays by name, each as a Cut. params: a nested dict of arrays and Cuts.

    Raises:
      ValueError: as payload.flatten, or if pieces do not make up their array.
    """
    return payload.flatten(params, leaf=_cut)


def _cut(name: str, value: Any) -> Cut:
    if not isinstance(value, Cut):
        array = payload.on_host(name, value)
        return Cut(array.shape, array.dtype.name, [Piece((0,) * array.ndim, array)])
    pieces = [piece._replace(data=payload.on_host(name, piece.data)) for piece in value.pieces]
    if {piece.data.dtype.name for piece in pieces} != {value.dtype}:
        raise ValueError(f"params {name!r}: pieces of another dtype than {value.dtype}")
    for piece in pieces:
        stop = tuple(np.add(piece.start, piece.data.shape).tolist()) if piece.start else ()
        check_box({name: (value.shape, value.dtype)}, name, piece.start, stop)
    if sum(piece.data.size for piece in pieces) != int(np.prod(value.shape, dtype=np.int64)):
        raise ValueError(f"params {name!r}: its pieces are not the whole of shape {value.shape}")
    return value._replace(pieces=pieces)


def is_cut(params: Params) -> bool:
    """Whether some array of a nested dict is a Cut."""
    return any(is_cut(x) if isinstance(x, Mapping) else isinstance(x, Cut) for x in params.values())


def whole(cuts: Mapping[str, Cut]) -> Params:
    """The nested dict of whole arrays, on this host."""
    boxes = [(name, (0,) * len(cut.shape), cut.shape) for name, cut in cuts.items()]
    return payload.nest(dict(zip(cuts, read(cuts, boxes), strict=True)))


def leaves_of(cuts: Mapping[str, Cut]) -> dict[str, tuple[tuple[int, ...], str]]:
    """name -> (shape, dtype)."""
    return {name: (tuple(cut.shape), cut.dtype) for name, cut in cuts.items()}


def read(cuts: Mapping[str, Cut], boxes: Sequence[Box]) -> list[np.ndarray]:
    """The values of boxes of arrays in memory."""
    found = []
    for name, start, stop in boxes:
        cut = cuts[name]
        if len(cut.pieces) == 1 and tuple(stop) == tuple(cut.shape) and not any(start):
            found.append(cut.pieces[0].data)
            continue
        places = [(piece.start, piece.data.shape) for piece in cut.pieces]
        found.append(fill(cut.dtype, start, stop, places, lambda i, box, cut=cut: cut.pieces[i].data[box]))
    return found


def fill(
    dtype: str,
    start: Sequence[int],
    stop: Sequence[int],
    places: Sequence[tuple[Sequence[int], Sequence[int]]],
    part: Callable[[int, tuple[slice, ...]], np.ndarray],
) -> np.ndarray:
    """The values of a box, from the pieces that lie in it.

    Args:
      dtype: of the array.
      start: first corner of the box.
      stop: its end.
      places: (first corner, shape) of each piece.
      part: (number of a piece, slices inside it) -> values. Asked only for pieces that meet the box.

    Raises:
      ValueError: if the pieces do not cover the box.
    """
    result = np.empty([b - a for a, b in zip(start, stop, strict=True)], payload.DTYPES[dtype])
    got = 0
    for i, (corner, shape) in enumerate(places):
        low = [max(a, c) for a, c in zip(start, corner, strict=True)]
        high = [min(b, c + size) for b, c, size in zip(stop, corner, shape, strict=True)]
        if any(a >= b for a, b in zip(low, high, strict=True)):
            continue
        inside = tuple(slice(a - c, b - c) for a, b, c in zip(low, high, corner, strict=True))
        target = tuple(slice(a - c, b - c) for a, b, c in zip(low, high, start, strict=True))
        result[target] = part(i, inside)
        got += result[target].size
    if got != result.size:
        raise ValueError(f"the pieces cover {got} of {result.size} values of [{tuple(start)} to {tuple(stop)}]")
    return result
