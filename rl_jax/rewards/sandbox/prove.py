"""Proves a sandbox before it is used: tries to get out of it, and refuses it with the name of what was open."""

import contextlib
import json
import os
import pathlib
import secrets
import shutil
import socket
import tempfile

from rl_jax.rewards.sandbox.protocol import Limits, Sandbox, SandboxError

# Attempts by what they need. QUICK ones are made one after another in one process, `inherited_descriptor` first.
FILES = "shadow secret secret_by_own_root secret_by_parents_root secret_by_dots secret_by_symlink secret_by_hard_link "
FILES += "rename_into write_outside write_own_program empty_by_reading change_modes kernel_memory sysrq core_pattern "
FILES += "sysfs open_for_nothing open_by_handle device_node list_others shared_memory temporary_files"
SECRETS = "environment parents_environment parents_maps parents_memory others_arguments home keyrings new_key"
PROCESSES = "signal_caller signal_all queue_signal trace_caller read_callers_memory write_callers_memory "
PROCESSES += "signal_by_pipe callers_descriptor orphan fork_bomb thread_bomb subprocess_"
NETWORK = "tcp tcp_six udp abstract_socket path_socket datagram_from_a_pair metadata name_server raw packet netlink "
NETWORK += "vsock listen"
KERNEL = "user_namespace mount_namespace clone_namespace clone_three mounts change_root pivot enter_namespace bpf perf "
KERNEL += "page_faults io_uring personality x32 int80 memory_file dropped_program gain_rights shared_segment "
KERNEL += "message_queue"
RESOURCES = "memory memory_of_many disk sparse_file inodes descriptors"
QUICK = ("inherited_descriptor", *" ".join((FILES, SECRETS, PROCESSES, NETWORK, KERNEL, RESOURCES)).split())
# Ended by a limit, each in a process of its own.
ENDED = ("stop_itself", "sleep", "flood_stdout", "flood_stderr", "spin", "bomb", "recursion", "power", "backtracking")
LIMITS = Limits(cpu_s=10.0, wall_s=60.0)
SHORT = Limits(cpu_s=1.0, wall_s=60.0)
SHORTEST = Limits(cpu_s=1.0, wall_s=0.3)
LIMITS_OF = {"stop_itself": SHORTEST, "sleep": SHORTEST}

HELLO = """
import json, math, sys
print(json.dumps([sys.stdin.read(), math.sqrt(4)]))
print("error", file=sys.stderr)
"""


class Bait(contextlib.ExitStack):
    """What attempts try for: a secret file that all may read, an open folder, listening sockets. A context manager.

    Attributes:
      facts: JSON values, attempts.FACTS.
    """

    def __init__(self):
        super().__init__()
        folder = tempfile.mkdtemp(prefix="rl_jax-bait-")
        self.callback(shutil.rmtree, folder, ignore_errors=True)
        os.chmod(folder, 0o755)
        secret = os.path.join(folder, "secret")
        pathlib.Path(secret).write_text("secret")
        os.chmod(secret, 0o644)
        open_folder = os.path.join(folder, "open")
        os.mkdir(open_folder)
        os.chmod(open_folder, 0o777)
        abstract = "rl_jax-" + secrets.token_hex(8)
        path_socket, path_datagrams = os.path.join(folder, "stream"), os.path.join(folder, "datagrams")
        self._socket(socket.AF_UNIX, socket.SOCK_STREAM, path_socket)
        self._socket(socket.AF_UNIX, socket.SOCK_DGRAM, path_datagrams)
        self._socket(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + abstract)
        for path in (path_socket, path_datagrams):
            os.chmod(path, 0o777)
        self.facts = {
            "pid": os.getpid(),
            "secret": secret,
            "open_folder": open_folder,
            "home": os.path.expanduser("~"),
            "abstract": abstract,
            "path_socket": path_socket,
            "path_datagrams": path_datagrams,
            "tcp": self._socket(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "tcp_six": self._socket(socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
            "udp": self._socket(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        }

    def _socket(self, family: int, kind: int, address) -> int:
        """Binds a socket; its port. 0 if this machine has no such family."""
        try:
            end = self.enter_context(socket.socket(family, kind))
            end.bind(address)
        except OSError:
            return 0
        if kind == socket.SOCK_STREAM:
            end.listen()
        return end.getsockname()[1] if family != socket.AF_UNIX else 0


def source(name: str) -> str:
    """A program for the sandbox: NAME.txt of this folder, which nothing outside a sandbox may import."""
    return (pathlib.Path(__file__).parent / f"{name}.txt").read_text()


def programs() -> dict[str, str]:
    """The files of a program that makes attempts."""
    files = {name: source(name) for name in ("attempts.py", "further_attempts.py")}
    return files | {"main.py": "import attempts\nattempts.main()\n"}


def attempt(sandbox: Sandbox, names: tuple[str, ...], facts: dict, limits: Limits) -> dict[str, str]:
    """name -> "open: ..." or "blocked: ..." of attempts that are made one after another.

    Raises:
      SandboxError: if the program could not even begin.
    """
    found, waiting = {}, list(names)
    while waiting:
        stdin = json.dumps({"names": waiting, "facts": facts}).encode()
        result = sandbox.run(programs(), stdin=stdin, limits=limits)
        for line in result.stdout.splitlines():
            with contextlib.suppress(ValueError, TypeError):
                name, verdict = json.loads(line)
                if name in waiting:
                    found[name] = verdict
        if b"Traceback" in result.stderr and waiting[0] not in found:
            raise SandboxError(f"the {sandbox.name} sandbox cannot try {waiting[0]}: {result.stderr[-500:]!r}")
        rest = [name for name in waiting if name not in found]
        if rest and result.status != "ok":  # the first of them ended the program
            found[rest[0]] = f"blocked: {result.status}"
        elif rest:
            raise SandboxError(f"the {sandbox.name} sandbox gave no verdict on {', '.join(rest)}")
        waiting = [name for name in waiting if name not in found]
    return found


def prove(sandbox: Sandbox, *, ended: tuple[str, ...] = ()) -> dict[str, str]:
    """Runs a harmless program and then the attempts.

    Args:
      sandbox: to be proved.
      ended: attempts of ENDED besides; each takes as long as its limit.

    Returns:
      name -> verdict.

    Raises:
      SandboxError: if the harmless program fails, or an attempt succeeds; the message names each.
    """
    result = sandbox.run({"main.py": HELLO}, stdin=b"in", limits=LIMITS)
    if (result.status, result.stdout, result.stderr) != ("ok", b'["in", 2.0]\n', b"error\n"):
        raise SandboxError(f"the {sandbox.name} sandbox cannot run a harmless program: {result}")
    with Bait() as bait:
        verdicts = attempt(sandbox, QUICK, bait.facts, LIMITS)
        for name in ended:
            verdicts |= attempt(sandbox, (name,), bait.facts, LIMITS_OF.get(name, SHORT))
    if opened := [f"{name} ({verdict[6:]})" for name, verdict in verdicts.items() if verdict.startswith("open")]:
        raise SandboxError(
            f"the {sandbox.name} sandbox does not hold here, {len(opened)} attempts got out: {'; '.join(opened)}. "
            "Use the other backend, or run model code on a machine of its own"
        )
    return verdicts
