"""Several processes as one program: how JAX's multi-controller runtime is started, and what passes between hosts.

All processes run the same program on one mesh that spans them all. Every process has, of a global batch, the rows that
its own devices hold: it reads those records, encodes them and scores what was sampled for them. What is small and
coupled over the batch (rewards, log-probs, ids) is then brought together, the same on every host. In one process each
function here gives back what it was given.
"""

import json
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Sharding


def start(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout_s: int = 100,
) -> None:
    """Connects this process with the others. Call it before anything touches a device.

    coordinator: HOST:PORT that process 0 listens at. num_processes, process_id: how many there are, and which this is,
        from 0. None for all three where the cluster tells (TPU pods, SLURM, Open MPI).
    timeout_s: a process that was silent for so long is taken for dead, and all others exit with an error then.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Its notifier swallows SIGTERM; our own handler takes it, and any_process makes all stop at the same step.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator,
        num_processes,
        process_id,
        # Shutting down waits for all: a process that failed must not wait for ones that wait for it.
        heartbeat_timeout_seconds=timeout_s,
        shutdown_timeout_seconds=timeout_s,
    )


def is_main() -> bool:
    """Whether this is the process that writes files and prints, the first."""
    return jax.process_index() == 0


def barrier(name: str) -> None:
    """Waits until every process has come to the barrier of this name."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def any_process(flag: bool) -> bool:
    """Whether `flag` is true in one process at least; all get the same answer, and must ask."""
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
    """Which of `count` rows, divided as `sharding` divides a first axis, this process's devices hold. int [n], rising.

    Processes that share a model between them (a tensor axis across hosts) hold the same rows.
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
    """Global arrays from the whole ones that every process has; each device gets its part and nothing is sent."""
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)

    def leaf(x):
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            return jax.device_put(x, sharding)
        x = np.asarray(x)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    return jax.tree.map(leaf, tree)


def local_rows(tree: Any) -> Any:
    """The rows of rows_here as numpy arrays, of arrays whose other axes are whole."""

    def leaf(x):
        if not isinstance(x, jax.Array) or x.is_fully_addressable:
            return np.asarray(x)
        shards = {shard.index[0].start or 0: shard.data for shard in x.addressable_shards}
        return np.concatenate([np.asarray(shards[start]) for start in sorted(shards)])

    return jax.tree.map(leaf, tree)


def whole(tree: Any) -> Any:
    """Arrays that no process holds alone, as numpy arrays on every host (a key as a key); others as they are."""

    def leaf(x):
        if not isinstance(x, jax.Array) or x.is_fully_addressable:
            return x
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(leaf(jax.random.key_data(x)), impl=jax.random.key_impl(x))
        if x.is_fully_replicated:
            return np.asarray(x.addressable_data(0))
        return multihost_utils.process_allgather(x, tiled=True)

    return tree if jax.process_count() == 1 else jax.tree.map(leaf, tree)


def gather_rows(tree: Any, rows: np.ndarray, count: int) -> Any:
    """[n, ...] of each process -> [count, ...] in every process, each row at its place.

    tree: numpy arrays, of one dtype and shape behind the rows in all processes. rows: int [n], their places. Where
    several processes have a row, the first one's counts: all go on with the same.
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
    """Every process's bytes. Lengths are padded to powers of two: each new one is a compiled program."""
    lengths = multihost_utils.process_allgather(np.int32(len(payload)))
    buffer = np.zeros(1 << int(max(lengths.max(), 1) - 1).bit_length(), np.uint8)
    buffer[: len(payload)] = np.frombuffer(payload, np.uint8)
    found = multihost_utils.process_allgather(buffer)
    return [row[:length].tobytes() for row, length in zip(found, lengths, strict=True)]
