"""Compilation: kept from start to start, done before the first step, and counted.

JAX writes an entry of its persistent cache in place and never writes it again: a process that is killed while it writes
leaves a torn entry, at which every later start warns and compiles anew. So each process here has a folder of its own
inside the cache, with links to what the others have finished, and moves what it has compiled over in one rename.
"""

import contextlib
import functools
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

COMPILED = "/jax/core/compile/backend_compile_duration"  # JAX's event behind a compilation or a cache hit
MAX_BYTES = 4 << 30
PRIVATE = "process-"  # and host and process id: a folder of one process


def use_cache(directory: str | os.PathLike, *, max_bytes: int = MAX_BYTES, min_compile_s: float = 0.0) -> None:
    """Keeps compiled programs in a folder of `directory` for this kind of processor, from now on, in this process.

    Programs are found by JAX's own key: the program, the devices, the versions, the compiler's flags. (For a CPU the
    key leaves out what its instructions are, hence the folder.) max_bytes: the oldest entries beyond go at the start.
    min_compile_s: what compiles faster is not kept.
    Where the folder cannot be written it warns, and JAX goes on without a cache.
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
        warnings.warn(f"compiled programs are not kept: {error}", stacklevel=2)
        return
    jax.config.update("jax_compilation_cache_dir", str(own))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", min_compile_s)
    # XLA's own caches (of GPU autotuning) would lie in the process's folder, and its name become part of every key.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    # The event comes when the thread that compiled has written its entry.
    jax.monitoring.register_event_duration_secs_listener(functools.partial(_publish, own, os.getpid()))


@functools.cache
def _spent() -> list[float]:
    """[seconds], which JAX's events add to from the first call on."""
    seconds = [0.0]

    def add(event: str, duration: float, **_) -> None:
        if event == COMPILED:
            seconds[0] += duration

    jax.monitoring.register_event_duration_secs_listener(add)
    return seconds


def compile_seconds() -> float:
    """Seconds that this process has spent in the compiler, or on reading its cache, since this was first called."""
    return _spent()[0]


class Ahead:
    """Compiles programs for the arguments that they will be called with, and says how long each took.

    A jitted function keeps what is compiled here: the call with like arguments compiles nothing more.
    """

    def __init__(self, say: Callable[[str], None]):
        """say: takes each line of progress."""
        self._say = say
        compile_seconds()  # counts from here on

    def __call__(self, name: str, program: Callable) -> Callable:
        """A function of `program`'s arguments that compiles it for them in place of running it, and returns zeros of
        its results' shapes, where its results will be: arguments for the next program. None for a result with keys."""

        def compile_for(*args):
            start = time.perf_counter()
            lowered = program.lower(*args)
            shardings = lowered.compile().output_shardings
            self._say(f"compiling {name} ... {time.perf_counter() - start:.1f} s")
            shapes = lowered.out_info
            if any(jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) for x in jax.tree.leaves(shapes)):
                return None
            return jax.tree.map(_zeros, shapes, shardings)

        return compile_for


def _zeros(shape, sharding) -> jax.Array:
    # Without a program of its own: np.zeros costs nothing until it is read.
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
    """Removes folders of processes of this host that are no more, and the oldest entries beyond max_bytes."""
    for path in folder.glob(f"{PRIVATE}{socket.gethostname()}-*"):
        if not _alive(int(path.name.rsplit("-", 1)[1])):
            shutil.rmtree(path, ignore_errors=True)
    room, entries = max_bytes, []
    for path in folder.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):  # another start makes room at the same moment
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
    """A name for what this machine's instructions are."""
    known = platform.machine()
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
        known += "-" + hashlib.sha256(flags.encode()).hexdigest()[:8]
    return known
