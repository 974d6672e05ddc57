"""The sandbox's own process, started by client.py as a file. Forks one process per program. Stdlib only.

It has given up root before the first program, never sees a program's text or input (those are files in a directory and
an open descriptor), and forks after the interpreter's imports: a program starts in a millisecond or two, from the same
state as every other. The forked process puts on its limits, Landlock and the seccomp filter, and runs main.py itself;
in the mode "bubblewrap" it becomes bwrap, which runs an interpreter of its own. One program at a time.

A socket of whole messages: the setup, answered by {"ready"} or {"failed"}; then {"id", "directory", "argv", "limits"}
with stdin, stdout and stderr, answered by {"id", "exit", "cpu_s", "wall_s", "late", "failed"}; {"id", "kill"} ends one.
"""

import atexit
import contextlib
import importlib.machinery
import json
import math
import os
import resource
import select
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
import types

MIB = 2**20
MAX_MESSAGE = 2**17
INTERPRETER_MB = 128  # address space of one that bwrap starts
PRELOADED = ("bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "itertools")
PRELOADED += ("linecache", "operator", "random", "re", "statistics", "string", "typing")
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "HOME": "/nonexistent"}


class _Ended(BaseException):
    """The client has gone."""


class Zygote:
    """The loop. `setup`: {"parent", "uid", "mode", "readable", "python", "bwrap", "folder"}."""

    def __init__(self, channel: socket.socket, setup: dict):
        self.channel, self.setup, self.mode, self.pid = channel, setup, setup["mode"], os.getpid()
        if setup["uid"] is not None:
            os.setgroups([])
            os.setresgid(*[setup["uid"]] * 3)
            os.setresuid(*[setup["uid"]] * 3)
        if 0 in (*os.getresuid(), *os.getresgid()) or self.mode != "none" and _capabilities():
            raise RuntimeError("it would run programs as root, or with capabilities")
        containment.set_readable(False)
        if os.getppid() != setup["parent"]:  # later on the closed socket tells
            raise RuntimeError("its parent has ended")
        containment.adopt_orphans()
        if self.mode == "landlock" and not landlock.abi():
            raise RuntimeError("this kernel has no Landlock, or refuses it here")
        self.filter = {}
        # RLIMIT_NPROC counts the user's processes, threads too, wherever they are.
        self.others = 1 if setup["uid"] is not None else _tasks_of(os.getuid()) + 512
        for name in PRELOADED:
            __import__(name)

    def serve(self) -> None:
        """Runs programs until the client closes the socket."""
        message = None
        while True:
            message, descriptors = message or self.receive()
            if "kill" in message:
                message = None
                continue
            message = self.one(message, descriptors)

    def receive(self) -> tuple[dict, list[int]]:
        """The next message."""
        data, descriptors, _, _ = socket.recv_fds(self.channel, MAX_MESSAGE, 4)
        if not data:
            raise _Ended
        return json.loads(data), descriptors

    def one(self, request: dict, descriptors: list[int]) -> tuple[dict, list[int]] | None:
        """Runs a program and answers. Returns a request that came meanwhile, whose client gave this one up."""
        status, self.report = os.pipe()
        start = time.monotonic()
        pid = os.fork()
        if not pid:
            try:
                self.become(request, descriptors)
            except BaseException as error:  # noqa: BLE001 - the client raises it
                with contextlib.suppress(OSError):
                    os.write(self.report, f"{type(error).__name__}: {error}"[:500].encode())
            finally:
                os._exit(1)
        for descriptor in (*descriptors, self.report):
            os.close(descriptor)
        late, following = False, None
        death = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(death, select.POLLIN)
        poll.register(self.channel, select.POLLIN)
        try:
            while True:
                left = start + request["limits"]["wall_s"] - time.monotonic()
                ready = {end for end, _ in poll.poll(max(0.0, left) * 1000 + 1)}
                if death in ready:
                    break
                if self.channel.fileno() in ready:
                    following = self.receive()
                    if following[0]["id"] == request["id"]:
                        following = None
                    break
                if left <= 0:
                    late = True
                    break
        finally:
            os.close(death)
            for kill in (os.killpg, os.kill):  # a process that has ended keeps its number until it is waited for
                with contextlib.suppress(OSError):
                    kill(pid, signal.SIGKILL)
            _, code, usage = os.wait4(pid, 0)
            containment.end_children()
        answer = {
            "id": request["id"],
            "exit": os.waitstatus_to_exitcode(code),
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "wall_s": time.monotonic() - start,
            "late": late,
            "failed": self.failure(os.read(status, MAX_MESSAGE), code),
        }
        os.close(status)
        self.channel.send(json.dumps(answer).encode())
        return following

    def failure(self, report: bytes, code: int) -> str | None:
        """Why the program could not be started; None if it was."""
        text = report.decode("utf-8", "replace")
        if self.mode != "bubblewrap" or (text and not text.startswith("{")):
            return text or None
        ran = "exit-code" in text or os.WIFSIGNALED(code)
        return None if ran else "bwrap could not start it; its message is in stderr"

    def become(self, request: dict, descriptors: list[int]) -> None:
        """In the fork: limits, confinement, and the program."""
        self.channel.detach()
        limits, directory, argv = request["limits"], request["directory"], request["argv"]
        report = max(*descriptors, self.report, 3) + 1
        os.dup2(self.report, report)
        self.report = report
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
        os.closerange(3, report)
        os.closerange(report + 1, 4096)
        os.setsid()
        containment.on_parent_death(signal.SIGKILL)
        if os.getppid() != self.pid:
            os._exit(1)
        os.chdir(directory)
        _set_limits(limits, self.mode, self.others)
        if self.mode == "bubblewrap":
            code = seccomp.program(processes=limits["processes"] > 1, files=limits["disk_mb"] > 0, execute=True)
            os.set_inheritable(report, True)
            code = seccomp.as_bytes(code)
            line = bubblewrap.command_line(self.setup, limits, argv, code, report, ENVIRONMENT)
            os.execve(self.setup["bwrap"], line, {})
        if self.mode == "landlock":
            code = seccomp.program(pid=os.getpid())
            rules = landlock.Rules([*self.setup["readable"], directory], [os.devnull])
            rules.put_on()
            os.close(rules.fd)
            seccomp.install(code)
        if argv:
            os.set_inheritable(report, False)
            os.execve(argv[0], argv, ENVIRONMENT)
        os.close(report)
        run_main()


def run_main() -> None:
    """main.py of the working directory as a program of its own; ends the process as an interpreter would."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "rl_jax"]:
        del sys.modules[name]
    sys.path.insert(0, os.getcwd())
    sys.argv[:] = ["main.py"]
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the end
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    loader = importlib.machinery.SourceFileLoader("__main__", "main.py")
    module = types.ModuleType("__main__")
    module.__file__, module.__loader__ = "main.py", loader
    sys.modules["__main__"] = module
    code = 1
    try:
        loader.exec_module(module)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    except BaseException as error:  # noqa: BLE001 - printed, as an interpreter does
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != "main.py":
            frames = frames.tb_next
        traceback.print_exception(type(error), error, frames)
    with contextlib.suppress(BaseException):
        threading._shutdown()
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code & 0xFF)


def _set_limits(limits: dict, mode: str, others: int) -> None:
    base = INTERPRETER_MB * MIB if mode == "bubblewrap" else containment.memory_bytes()
    cpu = max(1, math.ceil(limits["cpu_s"]))
    largest = {"none": containment.MAX_FILE_BYTES, "landlock": 0}.get(mode, bubblewrap.disk(limits))
    most = {
        resource.RLIMIT_AS: base + limits["memory_mb"] * MIB,
        resource.RLIMIT_CPU: cpu,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_NPROC: others + limits["processes"] + limits["threads"] + 4,
        resource.RLIMIT_FSIZE: largest,
    }
    for kind, value in most.items():
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _capabilities() -> bool:
    with open("/proc/self/status") as file:
        return any(int(line.split()[1], 16) for line in file if line.startswith(("CapPrm", "CapEff", "CapAmb")))


def _tasks_of(uid: int) -> int:
    """How many threads a user has."""
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == uid:
                count += len(os.listdir(f"/proc/{name}/task"))
    return count


def main() -> None:
    """Serves the socket whose number is the argument."""
    root = os.path.abspath(__file__)
    for _ in range(4):
        root = os.path.dirname(root)
    sys.path.append(root)
    global bubblewrap, containment, landlock, seccomp
    from rl_jax.rewards import containment
    from rl_jax.rewards.sandbox import bubblewrap, landlock, seccomp

    sys.path.remove(root)
    channel = socket.socket(fileno=int(sys.argv[1]))
    setup = json.loads(channel.recv(MAX_MESSAGE))
    try:
        zygote = Zygote(channel, setup)
    except Exception as error:  # noqa: BLE001 - the client raises it
        channel.send(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
        return
    channel.send(json.dumps({"ready": True}).encode())
    with contextlib.suppress(_Ended, BrokenPipeError, ConnectionResetError):
        zygote.serve()
    shutil.rmtree(setup["folder"], ignore_errors=True)


if __name__ == "__main__":
    main()
