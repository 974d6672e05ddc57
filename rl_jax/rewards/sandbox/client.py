"""The caller's end of a sandbox: a process of zygote.py, a fresh directory per program, and bounded pipes."""

import contextlib
import json
import os
import pathlib
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence

from rl_jax.rewards.sandbox import places, zygote
from rl_jax.rewards.sandbox.protocol import DEFAULT_LIMITS, Limits, RunResult, SandboxError

MODES = ("landlock", "bubblewrap", "none")
START_S, SILENCE_S = 120.0, 60.0  # for the process to start; for it to answer after a program's time
READ = 2**16


class ProcessSandbox:
    """A sandbox of one mode of zygote.py. Use it in a `with`, or close() it; start.make proves it."""

    def __init__(self, mode: str, *, python: str = "", bwrap: str = ""):
        """Starts its process.

        Args:
          mode: of MODES.
          python: interpreter of the programs; "": the one of this process if an unprivileged user may run it, else
            /usr/bin/python3.
          bwrap: path of bwrap; "": as found on PATH.

        Raises:
          SandboxError: if it cannot be had here.
        """
        if mode not in MODES:
            raise SandboxError(f"no sandbox {mode!r}; the sandboxes are {', '.join(MODES)}")
        if sys.platform != "linux":
            raise SandboxError(f"the sandbox needs Linux, this is {sys.platform}")
        self.name, self._lock, self._owner = mode, threading.Lock(), os.getpid()
        self.uid = places.unused_uid() if os.geteuid() == 0 else None
        self._python = python or places.interpreter(self.uid is not None)
        self._bwrap = bwrap or shutil.which("bwrap") or ""
        if mode == "bubblewrap" and not self._bwrap:
            raise SandboxError("there is no bwrap on PATH: install bubblewrap of your system (apt install bubblewrap)")
        self._folder = tempfile.mkdtemp(prefix="rl_jax-sandbox-")
        if self.uid is not None:  # its process removes the folder if this one ends without a word
            os.chown(self._folder, self.uid, self.uid)
        self._process = self._channel = None
        self._state = {"process": None, "channel": None}
        self._finalizer = weakref.finalize(self, _end, self._state, self._folder, self._owner)
        self._start()

    def __enter__(self) -> "ProcessSandbox":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def close(self) -> None:
        """Ends its process."""
        self._finalizer()

    @property
    def alive(self) -> bool:
        """Whether it was not closed."""
        return self._finalizer.alive

    def run(
        self,
        files: Mapping[str, str | bytes],
        *,
        stdin: bytes = b"",
        limits: Limits = DEFAULT_LIMITS,
        argv: Sequence[str] = (),
    ) -> RunResult:
        """See protocol.Sandbox.run."""
        if not self._finalizer.alive:
            raise SandboxError("this sandbox is closed")
        if self.name == "landlock" and (argv or limits.processes > 1 or limits.disk_mb):
            raise ValueError(
                "the landlock sandbox runs main.py in one process that writes no file: commands, processes > 1 "
                f"({limits.processes}) and disk_mb > 0 ({limits.disk_mb}) need the bubblewrap sandbox"
            )
        if not argv and "main.py" not in files:
            raise ValueError(f"there is no main.py among {', '.join(sorted(files)) or 'no files'}")
        with self._lock:
            directory = os.path.join(self._folder, secrets.token_hex(8))
            try:
                self._write(directory, files)
                return self._ask(directory, stdin, limits, list(argv))
            finally:
                shutil.rmtree(directory, ignore_errors=True)

    # --- The process ---

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [self._python, "-s", "-P", "-S", "-B", "-X", "utf8", str(pathlib.Path(zygote.__file__))]
        self._process = self._state["process"] = subprocess.Popen(
            [*command, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=zygote.ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
        theirs.close()
        self._channel = self._state["channel"] = ours
        setup = {
            "parent": os.getpid(),
            "uid": self.uid,
            "mode": self.name,
            "readable": places.readable(self._python, self.name),
            "python": self._python,
            "bwrap": self._bwrap,
            "folder": self._folder,
        }
        ours.settimeout(START_S)
        try:
            ours.send(json.dumps(setup).encode())
            answer = json.loads(ours.recv(zygote.MAX_MESSAGE) or b'{"failed": "its process ended at its start"}')
        except (OSError, ValueError) as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        if "failed" in answer:
            self.close()
            raise SandboxError(f"the {self.name} sandbox did not start with {self._python}: {answer['failed']}")

    def _write(self, directory: str, files: Mapping[str, str | bytes]) -> None:
        os.mkdir(directory, 0o700)
        for name, content in files.items():
            path = pathlib.PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.parts:
                raise ValueError(f"{name!r} is no relative path below the working directory")
            place = os.path.join(directory, path)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "wb") as file:
                file.write(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
        if self.uid is not None:
            for place, _, names in os.walk(directory):
                for name in (place, *(os.path.join(place, name) for name in names)):
                    os.chown(name, self.uid, self.uid)

    def _ask(self, directory: str, stdin: bytes, limits: Limits, argv: list[str]) -> RunResult:
        number = secrets.token_hex(8)
        request = {"id": number, "directory": directory, "argv": argv, "limits": limits._asdict()}
        source = _memory_file(stdin)
        left, pipes = {source}, []  # left: the open ends, each closed once: a number is soon another thread's file
        try:
            for _ in range(2):
                pipes.append(os.pipe())
                left.update(pipes[-1])
            writing = [end for _, end in pipes]
            try:
                socket.send_fds(self._channel, [json.dumps(request).encode()], [source, *writing])
            except (OSError, ValueError) as error:
                self._restart()
                raise SandboxError(f"the {self.name} sandbox has ended: {error}") from error
            _close(left, writing)
            return self._gather(number, [reading for reading, _ in pipes], limits)
        finally:
            _close(left, tuple(left))

    def _gather(self, number: str, ends: list[int], limits: Limits) -> RunResult:
        """Reads both pipes, bounded, until the process has answered."""
        found, most, answer, flooded = {end: bytearray() for end in ends}, limits.output_kb * 1024, None, False
        deadline = time.monotonic() + limits.wall_s + SILENCE_S
        with selectors.DefaultSelector() as selector:
            for end in (*ends, self._channel):
                if end is not self._channel:
                    os.set_blocking(end, False)
                selector.register(end, selectors.EVENT_READ)
            while answer is None:
                ready = [key.fileobj for key, _ in selector.select(max(0.0, deadline - time.monotonic()))]
                if not ready and time.monotonic() > deadline:
                    self._restart()
                    raise SandboxError(f"the {self.name} sandbox was silent {SILENCE_S} s after a program's time")
                for end in ready:
                    if end is self._channel:
                        answer = self._answer(number)
                    elif not _read(end, found[end], most):
                        selector.unregister(end)
                    elif len(found[end]) > most and not flooded:
                        flooded = True
                        self._channel.send(json.dumps({"id": number, "kill": True}).encode())
        for end in ends:  # every writer has ended
            while len(found[end]) <= most and _read(end, found[end], most):
                pass
        flooded = flooded or any(len(data) > most for data in found.values())
        stdout, stderr = (bytes(found[end][:most]) for end in ends)
        if answer["failed"]:
            why = f"{answer['failed']}. {stderr[-500:].decode('utf-8', 'replace')}"
            raise SandboxError(f"the {self.name} sandbox could not start a program: {why}")
        code = answer["exit"]
        if self.name == "bubblewrap" and code > 128 and code - 128 in set(signal.Signals):
            code = 128 - code  # bwrap reports a signal as shells do
        cpu = answer["cpu_s"] > limits.cpu_s or code == -signal.SIGKILL and answer["cpu_s"] > 0.9 * limits.cpu_s
        status = "output" if flooded else "wall" if answer["late"] else "cpu" if cpu else None
        status = status or ("ok" if not code else "killed" if code < 0 else "error")
        return RunResult(stdout, stderr, code, status, answer["cpu_s"], answer["wall_s"])

    def _answer(self, number: str) -> dict | None:
        """The answer to the request `number`; None for one to a request that was given up."""
        try:
            answer = json.loads(self._channel.recv(zygote.MAX_MESSAGE) or b"null")
        except (OSError, ValueError) as error:
            answer = {"failed": str(error), "id": number}
        if answer is None:
            self._restart()
            raise SandboxError(f"the {self.name} sandbox has ended while a program ran")
        return answer if answer["id"] == number else None

    def _restart(self) -> None:
        _stop(self._process, self._owner)
        self._channel.close()
        if os.getpid() == self._owner:
            self._start()


def _read(end: int, found: bytearray, most: int) -> bool:
    """Reads what a pipe has, at most one byte too much; False if it is closed or empty."""
    with contextlib.suppress(BlockingIOError):
        if data := os.read(end, READ):
            found += data[: max(0, most + 1 - len(found))]
            return True
    return False


def _close(left: set[int], ends: Sequence[int]) -> None:
    """Closes descriptors and takes them out of `left`."""
    for end in ends:
        left.remove(end)
        with contextlib.suppress(OSError):
            os.close(end)


def _memory_file(data: bytes) -> int:
    """A descriptor that reads `data`, and that cannot be written through."""
    file = os.memfd_create("stdin")
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        return os.open(f"/proc/self/fd/{file}", os.O_RDONLY)
    finally:
        os.close(file)


def _stop(process: subprocess.Popen | None, owner: int) -> None:
    if process is not None and os.getpid() == owner and process.poll() is None:
        process.kill()  # what it runs dies with it
        process.wait()


def _end(state: dict, folder: str, owner: int) -> None:
    _stop(state["process"], owner)
    if state["channel"] is not None:
        state["channel"].close()
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
