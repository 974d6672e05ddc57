"""Compilation: cached between runs, done before the first step, and timed.

JAX writes an entry of its persistent cache in place and never rewrites it: a process killed during the write leaves a
torn entry, at which every later run warns and compiles again. So each process here has its own folder inside the cache,
with links to what other processes have finished, and publishes what it compiled with one rename.
"""

import contextlib
import functools
import glob
import hashlib
import os
import pathlib
import platform
import shutil
import socket
import time
import warnings
from collections.abc import Callable

import jax
import numpy as np

COMPILED = "/jax/core/compile/backend_compile_duration"  # JAX's event after a compilation or a cache hit
MAX_BYTES = 4 << 30
PRIVATE = "process-"  # prefix, before host and process id, of the folder of one process


def use_cache(directory: str | os.PathLike, *, max_bytes: int = MAX_BYTES, min_compile_s: float = 0.0) -> None:
    """Keeps compiled programs in a folder of `directory` for this kind of processor, from now on, in this process.

    JAX's own key identifies a program: its code, the devices, the versions, the compiler flags. (The key of a CPU
    program leaves out the instruction set, hence one folder per kind of processor.) Warns and runs without a cache if
    the folder cannot be written.

    Args:
      directory: the cache, shared by runs.
      max_bytes: the oldest entries beyond this size are removed at the start.
      min_compile_s: programs that compile faster than this are not kept.
    """
    folder = pathlib.Path(directory).expanduser().absolute() / _processor()
    own = folder / f"{PRIVATE}{socket.gethostname()}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _prune(folder, max_bytes)
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        for entry in folder.glob("*-cache"):
            (own / entry.name).symlink_to(entry)
    except OSError as error:
        warnings.warn(f"compiled programs are not cached: {error}", stacklevel=2)
        return
    jax.config.update("jax_compilation_cache_dir", str(own))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", min_compile_s)
    # XLA's own caches (GPU autotuning) would be in the process's folder, and its name would enter every key.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    # The event comes after the compiling thread has written its entry.
    jax.monitoring.register_event_duration_secs_listener(functools.partial(_publish, own, os.getpid()))


@functools.cache
def _spent() -> list[float]:
    """[seconds], updated by JAX's events from the first call on."""
    seconds = [0.0]

    def add(event: str, duration: float, **_) -> None:
        if event == COMPILED:
            seconds[0] += duration

    jax.monitoring.register_event_duration_secs_listener(add)
    return seconds


def compile_seconds() -> float:
    """Seconds that this process has spent on compiling or reading the cache since the first call."""
    return _spent()[0]


class Ahead:
    """Compiles programs ahead of time for given arguments, and reports how long each took.

    A jitted function keeps what is compiled here: a later call with the same shapes compiles nothing more.
    """

    def __init__(self, write: Callable[[str], None]):
        """write: receives the text of the progress: the start of a line before a compilation, its end after it."""
        self.write = write
        compile_seconds()  # counts from here on

    def __call__(self, name: str, program: Callable) -> Callable:
        """A function that compiles `program` for its arguments without running it.

        Returns:
          A function of `program`'s arguments. It returns zeros with the shapes and shardings of the program's results,
          as arguments for the next program; None if a result contains PRNG keys.
        """

        def compile_for(*args):
            start = time.perf_counter()
            self.write(f"compiling {name} ... ")  # it can take minutes
            lowered = program.lower(*args)
            shardings = lowered.compile().output_shardings
            self.write(f"{time.perf_counter() - start:.1f} s\n")
            shapes = lowered.out_info
            if any(jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) for x in jax.tree.leaves(shapes)):
                return None
            return jax.tree.map(_zeros, shapes, shardings)

        return compile_for


def _zeros(shape, sharding) -> jax.Array:
    # Compiles no program; np.zeros costs nothing until it is read.
    return jax.make_array_from_callback(shape.shape, sharding, lambda index: np.zeros(shape.shape, shape.dtype)[index])


def _publish(own: pathlib.Path, process: int, event: str, duration: float, **_) -> None:
    """Moves finished entries from a process's folder to its parent, and links them."""
    if event != COMPILED or os.getpid() != process:  # a forked worker is another process
        return
    with contextlib.suppress(OSError):  # a cache that fails costs time, not the run
        for entry in os.scandir(own):
            if not entry.is_symlink():
                place = own.parent / entry.name
                os.replace(entry.path, place)
                os.symlink(place, entry.path)


def _prune(folder: pathlib.Path, max_bytes: int) -> None:
    """Removes folders of dead processes of this host, and the oldest entries beyond max_bytes."""
    ours = f"{PRIVATE}{socket.gethostname()}-"
    for path in folder.glob(f"{glob.escape(ours)}*"):
        process = path.name.removeprefix(ours)  # "1-4711" is of another host, whose name begins like ours
        if process.isdecimal() and not _alive(int(process)):
            shutil.rmtree(path, ignore_errors=True)
    room, entries = max_bytes, []
    for path in folder.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):  # another process is pruning at the same time
            status = path.stat()
            entries.append((status.st_mtime, status.st_size, path))
    for _, size, path in sorted(entries, reverse=True):
        room -= size
        if room < 0:
            path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _processor() -> str:
    """A name for this machine's instruction set."""
    known = platform.machine()
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
        known += "-" + hashlib.sha256(flags.encode()).hexdigest()[:8]
    return known
