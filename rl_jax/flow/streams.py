"""Named arrays as an Arrow stream, in pieces, with a header that says what must arrive. For the network."""

import json
import math
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow

from rl_jax.flow.payload import DTYPES

KEY = b"rl_jax.stream"
PIECE = 16 << 20  # bytes per record batch: what is in memory twice while it travels
_FIELDS = [("leaf", pyarrow.int32()), ("data", pyarrow.large_binary())]


def header(flat: Mapping[str, np.ndarray], **words: Any) -> dict[str, Any]:
    """What the receiver checks: names, dtypes, shapes, a checksum of all bytes, and `words`."""
    leaves, check = [], 0
    for name, value in flat.items():
        leaves.append([name, value.dtype.name, list(value.shape)])
        check = zlib.crc32(_bytes(value), check)
    return {**words, "leaves": leaves, "crc32": check}


def schema(head: Mapping[str, Any]) -> pyarrow.Schema:
    """Of the stream with this header."""
    return pyarrow.schema(_FIELDS, metadata={KEY: json.dumps(head)})


def pieces(flat: Mapping[str, np.ndarray], piece: int = PIECE) -> Iterator[pyarrow.RecordBatch]:
    """The record batches, one piece of one array in each."""
    for leaf, value in enumerate(flat.values()):
        content = _bytes(value)
        for start in range(0, len(content), piece):
            data = pyarrow.array([content[start : start + piece]], pyarrow.large_binary())
            yield pyarrow.record_batch([pyarrow.array([leaf], pyarrow.int32()), data], names=["leaf", "data"])


def read(reader, max_bytes: int | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(header, arrays) of a stream.

    Args:
      reader: a stream reader with `schema`, whose items have `data`, a record batch.
      max_bytes: of all arrays together; None is no limit.

    Raises:
      ValueError: if it is another stream, a larger one, truncated, or damaged.
    """
    head = _read_header(reader.schema)
    flat = {name: np.empty(shape, DTYPES[dtype]) for name, dtype, shape in _checked_leaves(head, max_bytes)}
    targets = [value.reshape(-1).view(np.uint8) for value in flat.values()]
    leaf, start, check = 0, 0, 0
    for item in reader:
        for row in item.data.to_pylist():
            while leaf < len(targets) and start == len(targets[leaf]):
                leaf, start = leaf + 1, 0
            content = row["data"] or b""
            if row["leaf"] != leaf or not content or start + len(content) > len(targets[leaf]):
                raise ValueError(f"array {leaf} of a stream: {len(content)} bytes too many or out of order")
            targets[leaf][start : start + len(content)] = np.frombuffer(content, np.uint8)
            start, check = start + len(content), zlib.crc32(content, check)
    got = sum(map(len, targets[:leaf])) + start
    if got != sum(map(len, targets)) or check != head.get("crc32"):
        raise ValueError(f"the stream is truncated or damaged: {got} of {sum(map(len, targets))} bytes")
    return head, flat


def _bytes(value: np.ndarray) -> memoryview:
    return memoryview(np.asarray(value, order="C").reshape(-1).view(np.uint8))


def _read_header(found: pyarrow.Schema) -> dict[str, Any]:
    try:
        head = json.loads((found.metadata or {})[KEY])
        if not found.equals(pyarrow.schema(_FIELDS)) or not isinstance(head, dict):
            raise ValueError(f"its columns are {found.names}")
        return head
    except (KeyError, ValueError) as error:
        raise ValueError(f"not a stream of arrays ({error!s:.120})") from error


def _checked_leaves(head: Mapping[str, Any], max_bytes: int | None) -> list[tuple[str, str, list[int]]]:
    leaves, total = head.get("leaves"), 0
    if not isinstance(leaves, list):
        raise ValueError("not a stream of arrays (its header has no leaves)")
    for leaf in leaves:
        match leaf:
            case [str(), str(dtype), list(shape)] if dtype in DTYPES:
                if not all(type(size) is int and 0 <= size < 1 << 40 for size in shape):
                    raise ValueError(f"a stream with an array of shape {shape!s:.80}")
                total += math.prod(shape) * DTYPES[dtype].itemsize
            case _:
                raise ValueError(f"a stream with an array {leaf!s:.80}")
        if max_bytes is not None and total > max_bytes:
            raise ValueError(f"a stream of more than {max_bytes} bytes, the most that is taken")
    if len({leaf[0] for leaf in leaves}) != len(leaves):
        raise ValueError("a stream with two arrays of one name")
    return leaves
