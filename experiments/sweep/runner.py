"""Runs tasks as processes, some at a time, until each is complete or has failed too often.

Completeness is read from the folders (final.json), so the loop can be killed at any moment and started again. A task's
process holds a lock that outlives the loop: the loop waits for a process left by a killed loop instead of starting a
second one.
"""

import fcntl
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from experiments.parts import stops
from experiments.sweep.folder import state_of, write_json
from rl_jax.runs.run_record import is_complete, read_json

GRACE_S = 120.0  # seconds from SIGTERM, at which a program saves, to SIGKILL
LOG_FILE = "log.txt"


class Task(NamedTuple):
    """A process to run.

    Attributes:
      name: shown in the display.
      workdir: its run directory, complete once it has a final.json.
      command: the command line.
      points: names of the points that it computes.
      finish: called once it is complete.
    """

    name: str
    workdir: pathlib.Path
    command: Sequence[str]
    points: Sequence[str]
    finish: Callable[[], None] = lambda: None


class Slot(NamedTuple):
    """Where a process runs.

    Attributes:
      cores: the cores that it may use, None for all.
      host: the ssh host, "" for this machine.
    """

    cores: frozenset[int] | None = None
    host: str = ""


class Running(NamedTuple):
    """A process started by this loop, or (process None) one left by a killed loop."""

    task: Task
    process: subprocess.Popen | None
    slot: Slot | None
    started: float


def local_slots(jobs: int, pin: bool = True) -> list[Slot]:
    """`jobs` slots that share this process's cores: disjoint ones if there are enough."""
    if not pin or not hasattr(os, "sched_getaffinity"):
        return [Slot()] * jobs
    cores = sorted(os.sched_getaffinity(0))
    if jobs >= len(cores):
        return [Slot(frozenset([cores[i % len(cores)]])) for i in range(jobs)]
    return [Slot(frozenset(cores[i * len(cores) // jobs : (i + 1) * len(cores) // jobs])) for i in range(jobs)]


class Runner:
    """The loop.

    Args:
      folder: the sweep's.
      tasks: to run.
      slots: where to run them; one process each.
      retries: how often a failed task is started again, over all starts of the sweep.
      display: informed of every change (experiments.sweep.display).
      grace_s: seconds from SIGTERM to SIGKILL.
      poll_s: seconds between checks.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        tasks: Sequence[Task],
        slots: Sequence[Slot],
        *,
        retries: int = 2,
        display: Any = None,
        grace_s: float = GRACE_S,
        poll_s: float = 0.1,
    ):
        self._folder, self._tasks, self._retries = folder, list(tasks), retries
        self._display, self._grace_s, self._poll_s = display, grace_s, poll_s
        self._free = list(slots)
        self._running: list[Running] = []
        self._waiting: list[Task] = []
        self._signal: int | None = None
        self._noted_at = 0.0
        self._stopped_at: float | None = None
        path = folder / "state.json"
        self._state: dict[str, Any] = read_json(path)["points"] if path.exists() else {}

    def run(self) -> int:
        """Runs the tasks that are not complete.

        Returns:
          0 if all are complete, 1 if one has failed for good, 128 + the signal if stopped.
        """
        (self._folder / "locks").mkdir(parents=True, exist_ok=True)
        kept = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            for task in self._tasks:
                self._sort(task)
            self._write_state()
            while self._running or (self._waiting and self._signal is None):
                self._reap()
                self._start()
                self._forward()
                if self._display is not None:
                    self._display.show(self._state, [(item.task, item.started) for item in self._running])
                time.sleep(self._poll_s)
            if self._display is not None:
                self._display.show(self._state, [], last=True)
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)
        if self._signal is not None:
            return 128 + self._signal
        return int(any(self._state[name]["state"] == "failed" for task in self._tasks for name in task.points))

    def _note(self, number: int, frame: Any) -> None:
        if self._signal is None:
            self._signal, self._noted_at = number, time.monotonic()
        elif number == signal.SIGINT or time.monotonic() - self._noted_at > stops.SAME_S:
            self._stopped_at = 0.0  # the second signal: stop waiting for programs to save

    def _sort(self, task: Task) -> None:
        """Sorts a task at the start: complete, failed for good, still running, or waiting.

        A task whose folder was removed has not failed yet. A fold's is made again before it runs: without a log.
        """
        if not (task.workdir / LOG_FILE).exists():
            self._set(task, failures=0)
        failures = max((self._of(name)["failures"] for name in task.points), default=0)
        if is_complete(task.workdir):
            task.finish()
            self._set(task, state="complete", error="")
        elif failures > self._retries:
            self._set(task, state="failed")  # an earlier start with more --retries may have left it pending
            self._say(
                f"{task.name} has failed {failures} times and is skipped; raise --retries, or remove {task.workdir}"
            )
        elif self._is_held(task):
            self._running.append(Running(task, None, None, time.monotonic()))
            self._set(task, state="running")
            self._say(f"{task.name} is still running, started by an earlier sweep")
        else:
            self._waiting.append(task)
            self._set(task, state="pending")

    def _of(self, name: str) -> dict[str, Any]:
        return self._state.setdefault(name, {"state": "pending", "attempts": 0, "failures": 0, "error": ""})

    def _set(self, task: Task, **changes: Any) -> None:
        for name in task.points:
            self._of(name).update(changes)

    def _write_state(self) -> None:
        write_json(self._folder / "state.json", {"points": self._state})

    def _say(self, text: str) -> None:
        if self._display is not None:
            self._display.message(text)

    def _is_held(self, task: Task) -> bool:
        return is_held(self._folder, task.name)

    def _start(self) -> None:
        while self._waiting and self._free and self._signal is None:
            task = self._waiting.pop(0)
            lock = _lock(self._folder, task.name)
            if lock is None:  # held by a process of an earlier loop, or by a child of a run
                self._running.append(Running(task, None, None, time.monotonic()))
                continue
            slot = self._free.pop(0)
            try:
                process = self._spawn(task, slot, lock)
            finally:
                os.close(lock)  # the process has its own
            self._running.append(Running(task, process, slot, time.monotonic()))
            for name in task.points:
                self._of(name)["attempts"] += 1
            self._set(task, state="running")
            self._write_state()
            self._say(f"started  {task.name}")

    def _spawn(self, task: Task, slot: Slot, lock: int) -> subprocess.Popen:
        command = list(task.command)
        if slot.host:
            command = ssh_command(slot.host, command)
        task.workdir.mkdir(parents=True, exist_ok=True)
        before = os.sched_getaffinity(0) if slot.cores else None
        with open(task.workdir / LOG_FILE, "ab") as log:
            try:
                if before is not None:
                    os.sched_setaffinity(0, slot.cores)  # inherited, so that its first thread has it, too
                # A session of its own: Ctrl-C in the terminal reaches only the loop, which asks the process to save.
                return subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(lock,), start_new_session=True
                )
            finally:
                if before is not None:
                    os.sched_setaffinity(0, before)

    def _reap(self) -> None:
        for item in list(self._running):
            if item.process is None:
                if self._is_held(item.task):
                    continue
                status = 0
            else:
                status = item.process.poll()
                if status is None:
                    continue
                self._free.append(item.slot)
            self._running.remove(item)
            self._ended(item, status)
            self._write_state()

    def _ended(self, item: Running, status: int) -> None:
        task, seconds = item.task, time.monotonic() - item.started
        if is_complete(task.workdir):
            task.finish()
            self._set(task, state="complete", error="")
            if self._display is not None:
                self._display.completed(task, seconds)
        elif self._signal is not None or item.process is None or status == stops.STOPPED:
            # Stopped by a signal, ours or another's, or an orphan that was killed: not a failure of the run.
            self._set(task, state="preempted")
            self._waiting.append(task)
        else:
            error = state_of(task.workdir)[1].strip().splitlines()[-1:] or [_said(status)]
            for name in task.points:
                self._of(name)["failures"] += 1
            failures = self._of(task.points[0])["failures"]
            if failures <= self._retries:
                self._waiting.append(task)
            self._set(task, state="pending" if failures <= self._retries else "failed", error=error[0])
            what = f"retry {failures} of {self._retries}" if failures <= self._retries else "no retries left"
            self._say(f"FAILED   {task.name} ({what}): {error[0]}; see {task.workdir / LOG_FILE}")

    def _forward(self) -> None:
        """Forwards a signal: SIGTERM to each process, then SIGKILL to the groups of those that do not end."""
        if self._signal is None:
            return
        now = time.monotonic()
        if self._stopped_at is None:
            self._stopped_at = now + self._grace_s
            self._say(f"stopping {len(self._running)} runs: each saves first; a second signal (Ctrl-C) stops at once")
            for item in self._running:
                if item.process is not None:
                    item.process.terminate()
        if now >= self._stopped_at:
            for item in self._running:
                if item.process is not None and item.process.poll() is None:
                    os.killpg(item.process.pid, signal.SIGKILL)
        self._running = [item for item in self._running if item.process is not None]  # orphans go on


def is_held(folder: pathlib.Path, name: str) -> bool:
    """Whether a living process works on the task of this name of the sweep in `folder`."""
    lock = _lock(folder, name)
    if lock is not None:
        os.close(lock)
    return lock is None


def _lock(folder: pathlib.Path, name: str) -> int | None:
    """A file descriptor that holds a task's lock; None if a living process has it."""
    (folder / "locks").mkdir(parents=True, exist_ok=True)
    place = os.open(folder / "locks" / name, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(place)
        return None
    return place


def ssh_command(host: str, command: Sequence[str]) -> list[str]:
    """The command on another machine, in the same folder on a shared file system; it ends with its ssh."""
    import shlex

    remote = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(command)}"
    return ["ssh", "-o", "BatchMode=yes", "-tt", host, remote]


def _said(status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}" if status else "ended without a final.json"
