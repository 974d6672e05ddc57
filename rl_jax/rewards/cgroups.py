"""A control group (cgroup v2) for each reward worker: one write ends all that is in it, however it forked. Stdlib only.

A descendant in a session of its own, with an environment of its own, whose parents have all ended, is found by nothing
else. Where no group can be made (no Linux, no permission, a kernel before 5.14) the tree of processes is ended instead
(containment.py). A group that a killed program has left behind, empty, is removed by the next one.
"""

import contextlib
import os
import pathlib
import time

NAME = "rl_jax-reward"
ROUNDS = 2000
ROUND_S = 0.002
_MOUNTS, _OWN = "/proc/self/mounts", "/proc/self/cgroup"


class Group:
    """A control group. `folder`: where the kernel shows it."""

    def __init__(self, folder: pathlib.Path):
        """folder: of a group that exists."""
        self.folder = folder

    def take(self, pid: int) -> bool:
        """Moves a process into it, and so all that it will start. Returns whether that was possible."""
        try:
            (self.folder / "cgroup.procs").write_text(f"{pid}\n")
        except OSError:
            return False
        return True

    def end(self) -> bool:
        """Kills all processes in it and removes it. Returns whether it is gone."""
        for _ in range(ROUNDS):
            with contextlib.suppress(OSError):
                (self.folder / "cgroup.kill").write_text("1\n")
            if _removed(self.folder):
                return True
            time.sleep(ROUND_S)
        return False


def own_folder(mounts: str = _MOUNTS, own: str = _OWN) -> pathlib.Path | None:
    """The folder of this process's group of version 2; None if there is none, or it cannot be written to.

    Args:
      mounts: file with the mounted file systems.
      own: file with this process's groups.
    """
    try:
        fields = [line.split() for line in pathlib.Path(mounts).read_text().splitlines()]
        places = [line.partition("::")[2] for line in pathlib.Path(own).read_text().splitlines() if line[:3] == "0::"]
    except OSError:
        return None
    roots = [parts[1] for parts in fields if len(parts) > 2 and parts[2] == "cgroup2"]
    if not roots or not places:
        return None
    folder = pathlib.Path(roots[0]) / places[0].lstrip("/")
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def make(tag: str, parent: pathlib.Path | None = None) -> Group | None:
    """A new group below this process's own.

    Args:
      tag: of its name.
      parent: another group to make it in.

    Returns:
      Group, or None where none can be made.
    """
    parent = parent or own_folder()
    if parent is None:
        return None
    sweep(parent)
    folder = parent / f"{NAME}-{os.getpid()}-{tag}"
    try:
        folder.mkdir()
    except OSError:
        return None
    if (folder / "cgroup.kill").exists():
        return Group(folder)
    _removed(folder)
    return None


def sweep(parent: pathlib.Path) -> None:
    """Removes the empty groups of programs that have ended."""
    for folder in parent.glob(f"{NAME}-*-*"):
        owner = folder.name.removeprefix(f"{NAME}-").partition("-")[0]
        if owner.isdecimal() and not os.path.exists(f"/proc/{owner}"):
            _removed(folder)


def _removed(folder: pathlib.Path) -> bool:
    """Tries to remove an empty group."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
