"""The command line of bwrap: private namespaces, the interpreter read-only, a bounded disk. Stdlib only."""

import os

MIB = 2**20


def command_line(setup: dict, limits: dict, argv: list[str], code: bytes, report: int, environment: dict) -> list[str]:
    """The command line of bwrap; opens what it reads."""
    command = [setup["bwrap"], "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--clearenv"]
    command += ["--cap-drop", "ALL"]
    for name, value in environment.items():
        command += ["--setenv", name, value]
    for path in setup["readable"]:
        command += ["--ro-bind", path, path]
    for path in ("/bin", "/lib", "/lib64", "/sbin"):
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
    for path in ("/dev/null", "/dev/urandom"):
        command += ["--dev-bind", path, path]
    command += ["--size", str(disk(limits)), "--tmpfs", "/work"]
    for path in _below("."):
        place = os.open(path, os.O_RDONLY)
        os.set_inheritable(place, True)
        command += ["--file", str(place), os.path.join("/work", os.path.relpath(path))]
    command += [] if limits["disk_mb"] else ["--remount-ro", "/work"]
    reading, writing = os.pipe()
    os.write(writing, code)  # smaller than a pipe
    os.close(writing)
    os.set_inheritable(reading, True)
    command += ["--remount-ro", "/", "--chdir", "/work", "--seccomp", str(reading), "--json-status-fd", str(report)]
    return [*command, "--", *(argv or [setup["python"], "-s", "-S", "-B", "-X", "utf8", "/work/main.py"])]


def disk(limits: dict) -> int:
    """Bytes of the working directory: the program's files, and what it may write."""
    return max(1, limits["disk_mb"]) * MIB + sum(os.path.getsize(path) for path in _below("."))


def _below(folder: str) -> list[str]:
    return sorted(os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
