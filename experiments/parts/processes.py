"""A run of several processes: its flags, and what only the first process does.

    python -m experiments.grpo ... --coordinator=HOST:PORT --num_processes=2 --process_id=0    # and --process_id=1
    python -m experiments.grpo ... --distributed=auto      # TPU pods and SLURM, which supply the rest

Run the same command in every process, with one --workdir on a shared disk, and a --config.mesh over the devices of all
processes. Communication between them is in rl_jax.training.distributed.
"""

import ctypes
import importlib.util
import os
import pathlib
import socket
import subprocess
from collections.abc import Sequence

import jax
import numpy as np
from absl import flags
from jax.sharding import Mesh

from rl_jax.data import pipeline
from rl_jax.runs.logging import RunLogger
from rl_jax.training import distributed, sharding
from rl_jax.training.step import TrainState

flags.DEFINE_enum("distributed", "", ["", "auto"], "auto: get the processes from the cluster (TPU pod, SLURM)")
flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0, the same in every process")
flags.DEFINE_integer("num_processes", 1, "number of processes that run this program together", lower_bound=1)
flags.DEFINE_integer("process_id", 0, "index of this process, from 0", lower_bound=0)
flags.DEFINE_integer("heartbeat_timeout_s", 100, "a process silent for this long counts as dead, and the others exit")
FLAGS = flags.FLAGS
MALLOC = {"M_TRIM_THRESHOLD": (-1, -1), "M_MMAP_MAX": (-4, 0), "M_ARENA_MAX": (-8, 1)}  # of malloc.h; -1: without end
ALONE = "leave out --distributed, --coordinator and --num_processes"


def start(*, supported: bool) -> None:
    """Connects the processes that the flags describe; does nothing without such flags.

    Args:
      supported: whether the program can run as several processes.

    Raises:
      ValueError: if it cannot, or if flags are missing.
    """
    if not FLAGS.distributed and FLAGS.num_processes == 1 and FLAGS.coordinator is None:
        return
    if not supported:
        raise ValueError(f"this program runs in one process: {ALONE}")
    options = {"timeout_s": FLAGS.heartbeat_timeout_s}
    if FLAGS.distributed:
        return distributed.start(**options)
    if FLAGS.coordinator is None or not FLAGS.process_id < FLAGS.num_processes:
        raise ValueError(
            f"--num_processes={FLAGS.num_processes} needs --coordinator=HOST:PORT and a --process_id from 0 to "
            f"{FLAGS.num_processes - 1}, got {FLAGS.coordinator} and {FLAGS.process_id}"
        )
    distributed.start(FLAGS.coordinator, FLAGS.num_processes, FLAGS.process_id, **options)


def simulate_devices(count: int, independent: bool = False) -> None:
    """On a CPU, requests this process's share of `count` simulated devices, so that a pod's mesh runs on a laptop.

    Has no effect once jax has started.

    Args:
      count: devices of the whole mesh.
      independent: whether no device waits for another one, as where each trains its own seeds.

    Raises:
      ValueError: if the devices do not divide over the processes.
    """
    processes = FLAGS.num_processes if FLAGS.is_parsed() else 1
    if (jax.config.jax_platforms or "cpu") != "cpu" or max(count, processes) == 1:
        return
    if count % processes:
        raise ValueError(
            f"a mesh of {count} devices cannot be split evenly over {processes} processes: change mesh or "
            "--num_processes"
        )
    share = count // processes
    # Devices that wait for each other do so in XLA's pool of threads: with one thread per core they would deadlock. The
    # operations of independent devices would only move between the threads: 16 of them cost half as much time again.
    os.environ.setdefault("NPROC", str(share) if independent and processes == 1 else "16")
    if processes > 1 or jax.config.jax_num_cpu_devices < share:  # several processes: more would change the mesh
        jax.config.update("jax_num_cpu_devices", share)


def one_thread() -> None:
    """Gives XLA one thread if it will run on a CPU: it was told to, or has no plugin for anything else.

    Has no effect once jax has started.
    """
    if _will_run_on_cpu():
        os.environ.setdefault("NPROC", "1")


def keep_memory() -> None:
    """Has the C library keep what is freed, if XLA will run on a CPU: a step's buffers are then the last step's pages.

    Otherwise glibc gives buffers of more than 32 MB back to the kernel, which clears new pages for the next step: up to
    a third of the time of an update of a small model. The process stays as large as it once was. All threads share one
    arena, as the others are bounded and cannot hold large buffers. Has no effect on threads that have an arena already,
    nor with another C library, nor if the environment has a MALLOC_ variable of glibc, as MALLOC_TRIM_THRESHOLD_.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt and _will_run_on_cpu() and not any(name.startswith("MALLOC_") for name in os.environ):
        for parameter, value in MALLOC.values():
            mallopt(parameter, value)


def _will_run_on_cpu() -> bool:
    """Whether jax was told to, or has no plugin for anything else."""
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin", "libtpu")
    return jax.config.jax_platforms == "cpu" or not any(map(importlib.util.find_spec, plugins))


def devices_for(count: int) -> list[jax.Device]:
    """The devices of a mesh of `count`, first: as many of each process, if not all of them are needed."""
    devices, shares = jax.devices(), jax.process_count()
    if shares == 1 or count >= len(devices) or count % shares:
        return devices
    own = [[device for device in devices if device.process_index == index] for index in range(shares)]
    return [device for devices in own for device in devices[: count // shares]]


def check_mesh(mesh: Mesh, field: str = "mesh") -> None:
    """Raises ValueError if a process has no device on the mesh: it could not take part in any step. field: its name."""
    missing = set(range(jax.process_count())) - {device.process_index for device in mesh.devices.flat}
    if missing:
        raise ValueError(
            f"mesh {dict(mesh.shape)} leaves processes {sorted(missing)} without a device: make --config.{field} as "
            f"large as the {jax.device_count()} devices of all {jax.process_count()} processes"
        )


def one_process(what: str, remedy: str = "") -> None:
    """Raises ValueError if there are several processes, which `what` does not support. remedy: what to do instead."""
    if jax.process_count() > 1:
        said = f"{what} works in one process only, but there are {jax.process_count()}"
        raise ValueError(f"{said}: {remedy}" if remedy else said)


def rows_here(mesh: Mesh, count: int) -> np.ndarray:
    """Indices, among a batch's `count` rows, of those that this process reads, encodes and judges."""
    return distributed.rows_here(sharding.batch_sharding(mesh), count)


def own_batches(mesh: Mesh, source, *, batch_size: int, seed: int):
    """Endless batches of data.train_iterator, this process's records only.

    Args:
      mesh: of the training.
      source: of records.
      batch_size: records per batch in all processes together.
      seed: of the order.
    """
    return pipeline.train_iterator(source, batch_size=batch_size, seed=seed, rows=rows_here(mesh, batch_size))


def own_to_mesh(mesh: Mesh, rows):
    """The global batch from every process's own rows (rows_here). Returns `rows` unchanged in a single process."""
    return distributed.place_own(rows, sharding.batch_sharding(mesh))


def own_rows(mesh: Mesh, tree):
    """This process's rows (rows_here), as numpy arrays, of arrays that lie anyhow on any mesh of all processes."""

    def leaf(x):
        spread = isinstance(x, jax.Array) and not x.is_fully_addressable
        return distributed.place(x, sharding.batch_sharding(mesh)) if spread else x

    return distributed.local_rows(jax.tree.map(leaf, tree))


def to_host(tree, *, main_only: bool = False):
    """Arrays spread over processes, whole on every host, or on the main one; in one process `tree` itself."""
    return distributed.whole(tree, main_only=main_only)


def replicate(mesh: Mesh, tree):
    """Replicates `tree`, equal in every process, over the mesh. Returns it unchanged in a single process."""
    return distributed.place(tree, sharding.replicated(mesh)) if jax.process_count() > 1 else tree


def step_key(state: TrainState, step: int) -> jax.Array:
    """The key of a step's randomness, equal in all processes."""
    return jax.random.fold_in(to_host(state.rng), step)


def start_locally(
    command: Sequence[str], count: int, logs: Sequence[pathlib.Path], **popen_options
) -> list[subprocess.Popen]:
    """Starts `count` processes of one command on this machine, with the flags that connect them. The caller ends them.

    Args:
      command: without these flags.
      count: number of processes.
      logs: one file per process; its output is appended.
      **popen_options: keywords of subprocess.Popen.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags_of_all = [f"--coordinator=127.0.0.1:{port}", f"--num_processes={count}"] if count > 1 else []
    started = []
    for index in range(count):
        mine = [*flags_of_all, f"--process_id={index}"] if count > 1 else []
        with open(logs[index], "ab") as output:
            streams = dict(stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            started.append(subprocess.Popen([*command, *mine], **streams, **popen_options))
    return started


class Silent:
    """A RunLogger that writes nothing."""

    def __enter__(self) -> "Silent":
        return self

    def __exit__(self, *_) -> None:
        pass

    def log(self, *_) -> None:
        """Does nothing, like the methods below."""

    samples = group_view = rows = message = log


def run_logger(workdir: pathlib.Path, step: int, **options) -> RunLogger | Silent:
    """The RunLogger in the first process, Silent in the others. step: the last step done, 0 for a new run."""
    return RunLogger(workdir, resume_step=step or None, **options) if distributed.is_main() else Silent()
