"""What holds the processes of a reward: a signal when a parent dies, limits, the end of all descendants. Stdlib only.

Linux has all of it; elsewhere only process groups and limits. Where control groups can be made, they end a worker's
descendants (cgroups.py). It contains faults and accidents. It is no sandbox: files and the network stay open, and a
process of the same user can do what that user can.
"""

import contextlib
import ctypes
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator

TAG = "RL_JAX_REWARD_WORKER"  # environment variable that every descendant inherits
MAX_FILE_BYTES = 2**30
MAX_OPEN_FILES = 1024
SPARE_CPU_S = 10  # on top of the time limit on every core
KILL_ROUNDS = 2000
ROUND_S = 0.002

_PDEATHSIG, _DUMPABLE, _CHILD_SUBREAPER, _NO_NEW_PRIVS = 1, 4, 36, 38  # linux/prctl.h
_CREATE_RULESET, _RESTRICT_SELF, _ABI = 444, 446, 1  # linux/landlock.h; the numbers are those of every architecture
_SCOPE_SIGNAL = 2  # no signal to a process outside; from ABI 6 on (Linux 6.12)
_LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True) if _LINUX else None


def _prctl(option: int, value: int) -> None:
    if _LINUX:
        _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def on_parent_death(number: int) -> None:
    """Has the kernel send this process a signal when the thread that started it ends. Linux only."""
    _prctl(_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Descendants whose parent ends become this process's children, also those in sessions of their own. Linux only."""
    _prctl(_CHILD_SUBREAPER, 1)


def set_readable(readable: bool) -> None:
    """Whether other processes of this user may read this one's memory and open its files through /proc. Linux only."""
    _prctl(_DUMPABLE, int(readable))


def memory_bytes() -> int:
    """The address space that this process has now; 0 if unknown."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def set_limits(*, memory_bytes: float) -> None:
    """Limits of this process and of all that it starts; one that cannot be set is left as it is.

    Args:
      memory_bytes: address space; inf sets none.
    """
    for kind, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        _limit(kind, most)


def set_cpu_limit(seconds: float) -> None:
    """CPU seconds of this process, and of each that it starts; inf sets none."""
    _limit(resource.RLIMIT_CPU, seconds)


def _limit(kind: int, most: float) -> None:
    _, hard = resource.getrlimit(kind)
    if most < 2**62:
        value = math.ceil(most) if hard == resource.RLIM_INFINITY else min(math.ceil(most), hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (value, value))


def prefer_for_oom() -> None:
    """If the machine runs out of memory, the kernel ends this process first, not the run. Linux only."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def signal_fence() -> int | None:
    """A fence (Landlock) behind which no process outside can be signalled or traced; None if the kernel has none."""
    if not _LINUX:
        return None
    syscall = _libc.syscall
    syscall.restype = ctypes.c_long
    abi = syscall(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(_ABI))
    if abi < 6:
        return None
    rules = (ctypes.c_uint64 * 3)(0, 0, _SCOPE_SIGNAL)  # files, network, scopes
    fence = syscall(ctypes.c_long(_CREATE_RULESET), rules, ctypes.c_size_t(24), ctypes.c_uint(0))
    return fence if fence >= 0 else None


def go_behind(fence: int | None) -> None:
    """Puts this process and all that it starts behind a `signal_fence`; does nothing for None."""
    if fence is not None:
        _prctl(_NO_NEW_PRIVS, 1)
        _libc.syscall(ctypes.c_long(_RESTRICT_SELF), ctypes.c_int(fence), ctypes.c_uint(0))


def children() -> set[int]:
    """This process's children, zombies too; empty if there is no /proc."""
    return {pid for pid, (parent, _) in _processes().items() if parent == os.getpid()}


def end_children(first: int | None = None, *, spare: frozenset[int] = frozenset()) -> int | None:
    """Kills this process's children until there is none, with those that it adopts meanwhile.

    Args:
      first: a child that leads a process group.
      spare: children that stay.

    Returns:
      The wait status of `first`; None if it was not found.
    """
    status = None
    if first is not None:
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(OSError):
                kill(first, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(first, 0)
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if not ended:
            # /proc is not read in one moment: a process that is adopted meanwhile may be missed once.
            left = children() - spare or children() - spare
            if not left:
                return status
            for pid in left:
                _kill(pid)
            time.sleep(ROUND_S)


def end_tree(root: int, tag: str) -> None:
    """Kills a process and all its descendants, and what carries its tag. `root` is to be waited for by the caller."""
    for _ in range(KILL_ROUNDS):  # `root` last: as long as it lives, its orphans are its children
        below = [pid for pid in _descendants(root, _processes()) if pid != root]
        if not below:
            break
        for pid in below:
            _kill(pid)
        time.sleep(ROUND_S)
    _kill(root)
    end_tagged(tag)


def end_tagged(tag: str) -> None:
    """Kills every process whose environment began with TAG=tag. Linux only."""
    needle = f"{TAG}={tag}".encode()
    for _ in range(KILL_ROUNDS):
        found = [pid for pid, (_, state) in _processes().items() if state != "Z" and needle in _environment(pid)]
        if not found:
            return
        for pid in found:
            _kill(pid)
        time.sleep(ROUND_S)


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _processes() -> dict[int, tuple[int, str]]:
    """pid -> (its parent, its state as in /proc); {} if there is no /proc."""
    result = {}
    if not os.path.isdir("/proc/self"):
        return result
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                result[int(name)] = int(parent), state.decode("ascii")
    return result


def _descendants(root: int, processes: dict[int, tuple[int, str]]) -> Iterator[int]:
    """Those below `root` that still live."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    waiting = [root]
    while waiting:
        for pid in children.get(waiting.pop(), []):
            waiting.append(pid)
            if processes[pid][1] != "Z":
                yield pid
