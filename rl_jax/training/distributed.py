"""Several processes as one program: starting JAX's multi-controller runtime, and communication between hosts.

All processes run the same program on one mesh that spans them all. Each process has the rows of a global batch that its
own devices hold: it reads those records, encodes them, and computes the rewards of their samples. Small values that are
coupled over the batch (rewards, log-probs, ids) are then gathered, identical on every host. With one process every
function here returns its input.
"""

import functools
import json
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax._src.distributed import global_state as state  # jax.process_index starts the devices
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec, Sharding

PIECE_BYTES = 1 << 28  # of an array that is gathered piece by piece: what it costs every device


def start(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout_s: int = 100,
) -> None:
    """Connects this process to the others. Call it before anything touches a device.

    Args:
      coordinator: HOST:PORT on which process 0 listens. None, like the next two, if the cluster provides it (TPU pods,
        SLURM, Open MPI).
      num_processes: number of processes.
      process_id: index of this process, from 0.
      timeout_s: a process that is silent for this long counts as dead, and all others exit with an error.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Its notifier swallows SIGTERM. Our own handler receives it, and any_process makes all stop at the same step.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator,
        num_processes,
        process_id,
        # Shutdown waits for all processes: a failed one must not wait for processes that wait for it.
        heartbeat_timeout_seconds=timeout_s,
        shutdown_timeout_seconds=timeout_s,
    )


def is_main() -> bool:
    """Whether this is process 0, which writes files and prints."""
    return jax.process_index() == 0


def is_first() -> bool:
    """Whether this is process 0. Unlike is_main it can be asked before devices are chosen: it does not start jax."""
    return (state.process_id or 0) == 0


def barrier(name: str) -> None:
    """Waits until every process has reached the barrier of this name."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def any_process(flag: bool) -> bool:
    """Whether `flag` is true in at least one process. Every process must call it; all get the same answer."""
    if jax.process_count() == 1:
        return bool(flag)
    return bool(np.any(multihost_utils.process_allgather(np.int32(flag))))


def largest(value: int) -> int:
    """The largest of every process's value, an int32."""
    if jax.process_count() == 1:
        return value
    return int(np.max(multihost_utils.process_allgather(np.int32(value))))


def gather(value: Any) -> list:
    """Every process's JSON value, in the order of the processes."""
    if jax.process_count() == 1:
        return [value]
    return [json.loads(content) for content in _exchange(json.dumps(value).encode())]


def rows_here(sharding: Sharding, count: int) -> np.ndarray:
    """Indices of the rows that this process's devices hold, int [n], rising.

    Processes that share a model between them (a tensor axis across hosts) hold the same rows.

    Args:
      sharding: how the first axis is split.
      count: number of rows.
    """
    if jax.process_count() == 1:
        return np.arange(count)
    spans = sharding.addressable_devices_indices_map((count,)).values()
    return np.unique(np.concatenate([np.arange(count)[index] for index in spans]))


def place_own(tree: Any, sharding: Sharding) -> Any:
    """Global arrays from each process's own rows: numpy arrays of rows_here -> arrays on the mesh."""
    if jax.process_count() == 1:
        return tree
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)), tree)


def place(tree: Any, sharding: Sharding) -> Any:
    """Global arrays from copies that every process holds whole (a key stays a key).

    Each device takes its part and nothing is sent. Arrays that are spread over the same devices already are laid out
    anew; those of other devices come by the hosts.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)

    def leaf(x):
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            if x.sharding.device_set == sharding.device_set:
                return jax.device_put(x, sharding)
            x = whole(x)
        x = x if _is_key(x) else np.asarray(x)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    return jax.tree.map(leaf, tree)


def local_rows(tree: Any) -> Any:
    """The rows of rows_here as numpy arrays, for arrays that are split over rows only."""

    def leaf(x):
        if not isinstance(x, jax.Array) or x.is_fully_addressable:
            return np.asarray(x)
        shards = {shard.index[0].start or 0: shard.data for shard in x.addressable_shards}
        return np.concatenate([np.asarray(shards[start]) for start in sorted(shards)])

    return jax.tree.map(leaf, tree)


def whole(tree: Any, *, main_only: bool = False) -> Any:
    """Arrays spread over processes, as numpy arrays on every host (a key stays a key); other leaves unchanged.

    No device holds more than PIECE_BYTES of an array that it does not own.

    Args:
      tree: of arrays. Every process must call it.
      main_only: whether other processes than the main one get None for each array that was gathered.
    """

    def leaf(x):
        if not isinstance(x, jax.Array) or x.is_fully_addressable:
            return x
        if _is_key(x):
            return jax.random.wrap_key_data(leaf(jax.random.key_data(x)), impl=jax.random.key_impl(x))
        if x.is_fully_replicated:
            return np.asarray(x.addressable_data(0))
        result = None if main_only and not is_main() else np.empty(x.shape, x.dtype)
        for index, piece in pieces(x):
            if result is not None:
                result[index] = piece
        return result

    return tree if jax.process_count() == 1 else jax.tree.map(leaf, tree)


def pieces(x: jax.Array, max_bytes: int = PIECE_BYTES) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
    """(index, values) of consecutive parts of an array, on every host; in the order of its elements where it can be.

    The parts are neighbours along the first axis that is not split over devices: of weights that are stacked by layer,
    some layers. If every axis is split it is the first one.

    Args:
      x: an array with any sharding. Every process must go through all of it.
      max_bytes: of a part; one index of the axis at least.
    """
    if not x.ndim or not x.size:
        yield (), np.asarray(_replicated(x))
        return
    spec = x.sharding.spec if isinstance(x.sharding, NamedSharding) else ()
    split = [i < len(spec) and spec[i] is not None for i in range(x.ndim)]
    axis = split.index(False) if False in split else 0
    count = max(1, max_bytes * x.shape[axis] // (x.size * x.dtype.itemsize))
    for start in range(0, x.shape[axis], count):
        index = (slice(None),) * axis + (slice(start, min(start + count, x.shape[axis])),)
        yield index, np.asarray(_replicated(_part(x, index)))


def _part(x: jax.Array, index: tuple[slice, ...]) -> jax.Array:
    """x[index], replicated.

    One program for all parts of a length; if the axis is split, one for each part, since XLA gathers the whole array
    before it looks for a place that it does not know.
    """
    axis = len(index) - 1
    start, length = index[axis].start, index[axis].stop - index[axis].start
    if not isinstance(x.sharding, NamedSharding):
        return x[index]
    everywhere, spec = NamedSharding(x.sharding.mesh, PartitionSpec()), x.sharding.spec
    if axis < len(spec) and spec[axis] is not None:
        return _slice_program(everywhere, axis, length, start)(x)
    return _slice_program(everywhere, axis, length, None)(x, start)


@functools.lru_cache(maxsize=64)
def _slice_program(sharding: NamedSharding, axis: int, length: int, start: int | None):
    """x, start -> the part; x -> the part if `start` is given."""
    if start is not None:
        return jax.jit(lambda x: jax.lax.slice_in_dim(x, start, start + length, axis=axis), out_shardings=sharding)
    return jax.jit(lambda x, at: jax.lax.dynamic_slice_in_dim(x, at, length, axis), out_shardings=sharding)


def _replicated(x: jax.Array) -> Any:
    """An array's value on this host."""
    return x.addressable_data(0) if x.is_fully_replicated else multihost_utils.process_allgather(x, tiled=True)


def _is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def gather_rows(tree: Any, rows: np.ndarray, count: int) -> Any:
    """[n, ...] of each process -> [count, ...] in every process, each row at its place.

    Args:
      tree: numpy arrays; dtypes and trailing shapes must agree between processes.
      rows: int [n]. Places of the rows. If several processes have a row, the first one's value is used everywhere.
      count: number of rows in all.
    """
    if jax.process_count() == 1:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    result = [np.zeros((count, *x.shape[1:]), x.dtype) for x in leaves]
    payloads = _exchange(b"".join(np.ascontiguousarray(x).tobytes() for x in leaves))
    for places, payload in reversed(list(zip(gather(rows.tolist()), payloads, strict=True))):
        start = 0
        for x in result:
            size = len(places) * int(np.prod(x.shape[1:]))
            part = np.frombuffer(payload, x.dtype, size, start)
            x[places] = part.reshape(len(places), *x.shape[1:])
            start += part.nbytes
    return jax.tree.unflatten(structure, result)


def _exchange(payload: bytes) -> list[bytes]:
    """Every process's bytes. Lengths are padded to powers of two, since each new length compiles a program."""
    lengths = multihost_utils.process_allgather(np.int32(len(payload)))
    buffer = np.zeros(1 << int(max(lengths.max(), 1) - 1).bit_length(), np.uint8)
    buffer[: len(payload)] = np.frombuffer(payload, np.uint8)
    result = multihost_utils.process_allgather(buffer)
    return [row[:length].tobytes() for row, length in zip(result, lengths, strict=True)]
