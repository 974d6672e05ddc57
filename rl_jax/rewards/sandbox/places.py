"""Where a sandbox finds a user, an interpreter and the files that a program may read. Stdlib only."""

import contextlib
import os
import pathlib
import pwd
import secrets
import sys

from rl_jax.rewards.sandbox.protocol import SandboxError

FIRST_UID, UIDS = 52_000, 7_000  # unused on usual systems, and within the range of a container's user ids


def unused_uid() -> int:
    """A user id that neither the machine's users nor its processes have, and that this user namespace knows."""
    with open("/proc/self/uid_map") as file:
        ranges = [(int(first), int(count)) for first, _, count in map(str.split, file)]
    taken = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            taken.add(os.stat(f"/proc/{name}").st_uid)
    start = secrets.randbelow(UIDS)
    for step in range(UIDS):
        uid = FIRST_UID + (start + step) % UIDS
        if uid not in taken and any(first <= uid < first + count for first, count in ranges):
            try:
                pwd.getpwuid(uid)
            except KeyError:
                return uid
    raise SandboxError(f"no unused user id in {FIRST_UID}..{FIRST_UID + UIDS} to give up root for; run it as a user")


def interpreter(unprivileged: bool) -> str:
    """An interpreter that the sandbox's user can run."""
    own = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
    candidates = [own, "/usr/bin/python3", "/usr/local/bin/python3"]
    for path in candidates:
        place = os.path.realpath(path)
        if os.access(place, os.X_OK) and (not unprivileged or _open_to_all(place)):
            return place
    raise SandboxError(
        f"this process is root and the sandbox's user may not run {own}, nor is there a /usr/bin/python3: "
        "install one, run as an ordinary user, or pass python="
    )


def _open_to_all(path: str) -> bool:
    parents = pathlib.Path(path).parents
    return all(os.stat(place).st_mode & 0o001 for place in parents) and bool(os.stat(path).st_mode & 0o005)


def readable(python: str, mode: str) -> list[str]:
    """What a program may read: the interpreter's files and the machine's libraries."""
    prefix = os.path.dirname(os.path.dirname(python))
    if mode == "bubblewrap":
        own = [] if prefix.startswith("/usr") else [prefix]
        plain = [path for path in ("/bin", "/lib", "/lib64") if os.path.isdir(path) and not os.path.islink(path)]
        return [path for path in ("/usr", *plain, *own, "/etc/ld.so.cache") if os.path.exists(path)]
    paths = {os.path.realpath(path) for path in ("/lib", "/lib64", "/usr/lib", "/usr/lib64", f"{prefix}/lib")}
    return sorted({path for path in (*paths, "/dev/urandom", "/etc/ld.so.cache") if os.path.exists(path)})
