"""The disk under a run: one run per folder at a time, errors that name the folder and say what to do (named)."""

import errno
import fcntl
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

from rl_jax.data.writing import named

LOCK_FILE = "run.lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_held: dict[Path, int] = {}  # folder -> file descriptor of its lock, in this process


class InUseError(RuntimeError):
    """A folder belongs to another process that is alive; the message names it."""


def try_folder(folder: str | os.PathLike) -> None:
    """Makes a folder and writes to it, for work that is long and leaves a file there only at its end.

    Raises:
      OSError: if it cannot be written; names it.
    """
    with named(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))


def lock(folder: str | os.PathLike) -> None:
    """Makes this process the only one that writes to a run's folder, until `unlock` or its end, however it ends.

    A process may lock a folder again. On a file system without locks a line says so, and nothing is locked.

    Raises:
      InUseError: if another process has it; names its pid and host.
      OSError: if the folder cannot be written; names it.
    """
    folder = Path(folder).absolute()
    if folder in _held:
        return
    with named(folder):
        folder.mkdir(parents=True, exist_ok=True)
        place = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = _owner(place)
        os.close(place)
        raise InUseError(
            f"{folder} belongs to a run that is going on, {owner}: wait for it, stop it (SIGTERM: it saves first), or "
            "give another workdir"
        ) from None
    except OSError as error:
        os.close(place)
        if error.errno not in _NO_LOCKS:
            raise
        print(f"{folder}: this file system has no locks, so start only one run there at a time", file=sys.stderr)
        return
    content = json.dumps({"pid": os.getpid(), "host": platform.node()}).encode() + b"\n"
    try:
        with named(folder):
            os.ftruncate(place, 0)
            os.pwrite(place, content, 0)
    except OSError:
        os.close(place)  # or this process would be refused when it tries again
        raise
    _held[folder] = place


def unlock(folder: str | os.PathLike) -> None:
    """Gives the folder back; does nothing if this process does not have it."""
    place = _held.pop(Path(folder).absolute(), None)
    if place is not None:
        os.close(place)


def _owner(place: int) -> str:
    try:
        owner = json.loads(os.pread(place, 1000, 0))
        return f"process {owner['pid']} on {owner['host']}"
    except (ValueError, LookupError, TypeError):  # it has just begun
        return "a process that has not said its number yet"


def _forget() -> None:
    """In a forked child: the lock is the parent's, and must not outlive it."""
    for place in _held.values():
        os.close(place)
    _held.clear()


os.register_at_fork(after_in_child=_forget)
