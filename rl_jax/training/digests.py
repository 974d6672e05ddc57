"""Digests of a checkpoint: whether what was read is what was saved.

The digest of an array is a sum over its elements, modulo 2**64:

  sum_i mix(bits(x_i) + (i + 1) * WEIGHT)        i: the element's place in the whole array; mix: splitmix64's

`mix` is a bijection, so one changed element always changes the sum; any other fault is missed with a probability of
2**-64. A sum needs no order: each process adds up the shards that it owns, and the sums of all processes are added. So
no array is gathered, and the digest does not depend on the mesh.
"""

import concurrent.futures
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rl_jax.core.types import path_name
from rl_jax.training import distributed

RECORD, SEAL = "digests", "digests_sha256"  # names in the saved JSON, besides the host's own
WEIGHT = np.uint64(0x9E3779B97F4A7C15)
CHUNK = 1 << 15  # elements at a time: they stay in the processor's cache
SMALL = 1 << 20  # bytes below which threads cost more than they save
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def of(tree: Any) -> dict[str, str]:
    """{name: "float32[4,8] DIGEST"} of all leaves, equal in all processes. Every process must call it."""
    parts = distributed.gather(_own(tree))
    result = {}
    for name, (kind, _) in parts[0].items():
        result[name] = f"{kind} {sum(part[name][1] for part in parts) % 2**64:016x}"
    return result


def kinds(record: Mapping[str, str]) -> dict[str, str]:
    """{name: "float32[4,8]"} of a record."""
    return {name: value.partition(" ")[0] for name, value in record.items()}


def kind_of(leaf: Any) -> str:
    """dtype and shape of an array or a shape struct, as in a record; of a key those of its data."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def fault(record: Mapping[str, str], tree: Any) -> str:
    """What differs between arrays and the digests that were saved with them; "" if nothing does.

    Every process must call it.

    Args:
      record: of the saved arrays, by name.
      tree: the arrays that were read; it may be a part of what was saved.
    """
    found = of(tree)
    wrong = [name for name, value in found.items() if record.get(name) != value]
    if not wrong:
        return ""
    more = f", and {len(wrong) - 1} more arrays" if len(wrong) > 1 else ""
    return f"{wrong[0]} is not what was saved: its digest is {found[wrong[0]]}, expected {record.get(wrong[0])}{more}"


def seal(step: int, host: Mapping[str, Any], record: Mapping[str, str]) -> dict[str, Any]:
    """The JSON that is saved with a step: the host's values, the digests of the arrays, and a checksum of both.

    Raises:
      ValueError: if the host's values take a name that the digests need.
    """
    if taken := {RECORD, SEAL} & set(host):
        raise ValueError(f"the host's state has a field {sorted(taken)[0]!r}, which belongs to the checkpoint")
    content = json.loads(json.dumps({**host, RECORD: {"step": step, "arrays": record}}))
    return content | {SEAL: _sha256(content)}


def unseal(step: int, content: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str] | None]:
    """(the host's values, the digests) of a saved JSON; digests None if it was written before there were any.

    Raises:
      ValueError: if the JSON is not what was saved with this step; says why.
    """
    content = dict(content)
    expected = content.pop(SEAL, None)
    if expected is None and RECORD not in content:
        return content, None
    if expected != _sha256(content):
        raise ValueError("the host's state is not what was saved: its checksum differs")
    record = content.pop(RECORD)
    if record["step"] != step:
        raise ValueError(f"it is the checkpoint of step {record['step']}, not {step}")
    return content, record["arrays"]


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _own(tree: Any) -> dict[str, tuple[str, int]]:
    """{name: (kind, the sum over the elements that this process owns)}."""
    result, tasks, size = {}, [], 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        name = path_name(path)
        result[name] = (kind_of(leaf), 0)
        for index, data in _shards(leaf):
            tasks.append((name, leaf.shape, index, data))
            size += data.nbytes
    if size < SMALL:
        sums = [_sum(*task[1:]) for task in tasks]
    else:
        with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            sums = list(pool.map(lambda task: _sum(*task[1:]), tasks))
    for (name, *_), value in zip(tasks, sums, strict=True):
        result[name] = (result[name][0], (result[name][1] + value) % 2**64)
    return result


def _shards(leaf: Any) -> list[tuple[tuple[slice, ...], Any]]:
    """(index, data) of the parts that this process owns: of copies only the first."""
    if isinstance(leaf, jax.Array):
        return [(shard.index, shard.data) for shard in leaf.addressable_shards if shard.replica_id == 0]
    return [((slice(None),) * leaf.ndim, leaf)] if distributed.is_main() else []


def _sum(shape: Sequence[int], index: tuple[slice, ...], data: Any) -> int:
    """The sum over one part of an array of this shape."""
    part = np.ascontiguousarray(np.asarray(data))
    shape, starts = list(shape), [s.indices(n)[0] for s, n in zip(index, shape, strict=True)]
    local = list(np.shape(data))
    if part.dtype.itemsize > 8:  # complex128: two elements
        part = part.reshape(*local, 1).view(np.uint64)
        shape, starts, local = [*shape, 2], [*starts, 0], [*local, part.shape[-1]]
    if not part.size:
        return 0
    bits = part.reshape(-1).view(f"u{part.dtype.itemsize}")
    # Trailing axes that are whole, and the one before them, make one run of neighbours; `first` is where each begins.
    axis = len(shape)
    while axis > 0 and local[axis - 1] == shape[axis - 1]:
        axis -= 1
    axis = max(axis - 1, 0)
    run = math.prod(local[axis:])
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    first = np.zeros((1,), np.int64)
    for i in range(axis):
        first = (first[:, None] + (starts[i] + np.arange(local[i])) * strides[i]).reshape(-1)
    first = first + (starts[axis] * strides[axis] if shape else 0)
    return _sum_runs(bits.reshape(len(first), run), first.astype(np.uint64))


def _sum_runs(bits: np.ndarray, first: np.ndarray) -> int:
    """The sum over rows of neighbours. bits: uint [rows, run]. first: uint64 [rows], the place of each row's first."""
    count, run = bits.shape
    rows, width, total = max(CHUNK // run, 1), min(run, CHUNK), 0
    weights = np.arange(1, width + 1, dtype=np.uint64) * WEIGHT
    for i in range(0, count, rows):
        begin = (first[i : i + rows] * WEIGHT)[:, None]
        for j in range(0, run, width):
            x = bits[i : i + rows, j : j + width].astype(np.uint64)
            x += weights[: x.shape[1]]
            x += begin + np.uint64(j * int(WEIGHT) % 2**64)
            for shift, factor in _ROUNDS:
                x ^= x >> np.uint64(shift)
                x *= np.uint64(factor)
            x ^= x >> np.uint64(31)
            total += int(x.sum(dtype=np.uint64))
    return total % 2**64
