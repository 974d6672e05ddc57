"""The program's end of a reward worker: its pipes, and its end. No jax."""

import contextlib
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import time
from collections import deque

from rl_jax.rewards import cgroups, containment, replies
from rl_jax.rewards import worker as worker_module

START_LIMIT_S = 120.0  # importing the reward function's module on a busy machine
STOP_S = 20.0  # for a worker to end its children
MAX_MESSAGE = 2 * replies.MAX_REPLY  # bytes of a worker's line
READ = 1 << 16
READS = 16  # in a row, before other workers are looked at


class WorkerHandle:
    """One worker. `owed`: ids of the items sent and not yet answered, in order."""

    def __init__(self, setup: bytes):
        """Starts it; `setup` is the first line that it reads."""
        self.owner, self.tag = os.getpid(), secrets.token_hex(8)
        self.process = subprocess.Popen(
            ["env", f"{containment.TAG}={self.tag}", sys.executable, "-P", str(pathlib.Path(worker_module.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self.group = cgroups.make(self.tag)  # before it has read a line, so that all it starts is in there
        if self.group and not self.group.take(self.process.pid):
            self.group.end()
            self.group = None
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            os.set_blocking(pipe.fileno(), False)
        self.ready = False
        self.owed: deque[int] = deque()
        self.deadline = time.monotonic() + START_LIMIT_S
        self.outgoing, self.incoming, self.printed = setup, b"", b""
        self.send()  # the worker imports the function while the program does other things

    def send(self) -> None:
        """Writes as much of `outgoing` as the pipe takes; a closed pipe shows up as EOF on reading."""
        try:
            while self.outgoing:
                count = self.process.stdin.write(self.outgoing)
                if count is None:
                    return
                self.outgoing = self.outgoing[count:]
        except BrokenPipeError:
            self.outgoing = b""

    def receive(self) -> tuple[list[bytes], bool]:
        """(lines complete so far, whether the pipe is closed or holds something endless)."""
        closed = False
        for _ in range(READS):
            data = self.process.stdout.read(READ)
            if data is None:
                break
            closed = closed or not data
            if closed:
                break
            self.incoming += data
        *lines, self.incoming = self.incoming.split(b"\n")
        return lines, closed or len(self.incoming) > MAX_MESSAGE

    def begin_stop(self) -> None:
        """Asks the process to end, also one that was stopped by a signal."""
        if self.owner != os.getpid():  # a forked copy of the program
            return
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def stop(self) -> None:
        """Ends the process and all that it has started, and waits for it."""
        if self.owner != os.getpid():
            return
        self.begin_stop()
        if self.ready:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        if not (self.group and self.group.end()):
            if self.process.poll() is None:
                containment.end_tree(self.process.pid, self.tag)
            elif self.process.returncode:  # it did not end by itself, so its children may live
                containment.end_tagged(self.tag)
        self.process.stdout.close()
        self.process.stderr.close()
        self.process.wait()


def stop_all(workers: list) -> None:
    """Stops all of them, and empties the list."""
    for worker in workers:
        worker.begin_stop()
    while workers:
        workers.pop().stop()
