"""Runs a reward function over many samples in worker processes with a time limit per item. No jax.

Workers are new interpreters (subprocess, never fork: jax holds threads) running `worker.py`; data is passed as JSON
lines and the function by name. Items are sent in chunks. A worker answers item by item, and the time of an item starts
with the previous answer. A worker that is late or dies is replaced: its current item scores `failure_reward` and is
counted, the rest of its chunk goes to another worker. So an item's score does not depend on the number of workers or on
the other items.
"""
import json
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rl_jax.rewards import worker as worker_module

START_LIMIT_S = 120.0  # importing the reward function's module on a busy machine
MAX_CHUNK = 64
MAX_START_FAILURES = 3


class RewardResult(NamedTuple):
    """Scores of N items.

    Attributes:
      rewards: f32 [N].
      components: name -> f32 [N], without "reward"; 0 if an item failed or lacks the name.
      num_timeouts: number of items over the time limit.
      num_errors: number of items that failed otherwise.
      first_error: message of the first failed item, or None.
      failed: bool [N], the items that failed or were too late; None if not known.
    """
    rewards: np.ndarray
    components: dict[str, np.ndarray]
    num_timeouts: int
    num_errors: int
    first_error: str | None
    failed: np.ndarray | None = None


class _Worker:
    """One process. `owed`: ids of the items sent and not yet answered, in order."""

    def __init__(self, setup: bytes):
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(pathlib.Path(worker_module.__file__))], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, bufsize=0, start_new_session=True)
        os.set_blocking(self.process.stdin.fileno(), False)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.ready = False
        self.owed: deque[int] = deque()
        self.deadline = time.monotonic() + START_LIMIT_S
        self.outgoing, self.incoming = setup, b""
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

    def receive(self) -> tuple[list, bool]:
        """(messages complete so far, whether the pipe is closed)."""
        closed = False
        while (data := self.process.stdout.read(1 << 16)) is not None:
            if not data:
                closed = True
                break
            self.incoming += data
        *lines, self.incoming = self.incoming.split(b"\n")
        return [json.loads(line) for line in lines], closed

    def stop(self) -> None:
        """Kills the process and its children, and waits for it."""
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended between the two calls
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def _stop_all(workers: list) -> None:
    while workers:
        workers.pop().stop()


def function_name(function: Callable) -> str:
    """"module:qualname" of an importable function.

    Raises:
      ValueError: for any other callable; the message says what to do.
    """
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    help_text = ("; worker processes import the function by name: define it at the top level of an importable module, "
                 "pass its fixed arguments as kwargs=, or use num_workers=0 (this process, no time limit)")
    if not module or not qualname or "<" in qualname or module == "__main__":
        raise ValueError(f"reward function {function!r} cannot be imported by name" + help_text)
    try:
        resolved = worker_module.resolve(f"{module}:{qualname}")
    except (ImportError, AttributeError) as error:
        raise ValueError(f"reward function {module}:{qualname} cannot be imported ({error})" + help_text) from error
    if resolved is not function:
        raise ValueError(f"{module}:{qualname} names another object than {function!r}" + help_text)
    return f"{module}:{qualname}"


class RewardPool:
    """Callable over (prompts, completions, infos); see the head of this file. Use it in a `with`, or close() it."""

    def __init__(self, reward_fn: Callable, *, kwargs: Mapping | None = None, num_workers: int = 2,
                 time_limit_s: float = 1.0, failure_reward: float = 0.0):
        """Starts the workers and waits until each has imported the function.

        Args:
          reward_fn: (prompt, completion, info: dict, **kwargs) -> {"reward": float, component: float, ...}.
          kwargs: JSON values.
          num_workers: 0 runs any callable in this process, without the time limit.
          time_limit_s: per item, in seconds.
          failure_reward: reward of an item that fails.

        Raises:
          ValueError: if an argument is invalid.
          RuntimeError: if a worker cannot start.
        """
        if num_workers < 0 or not time_limit_s > 0:
            raise ValueError(f"num_workers must be >= 0 and time_limit_s > 0, got {num_workers} and {time_limit_s}")
        self._function, self._kwargs = reward_fn, dict(kwargs or {})
        self._num_workers, self._time_limit_s, self._failure_reward = num_workers, time_limit_s, failure_reward
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _stop_all, self._workers)
        if not num_workers:
            return
        name = function_name(reward_fn)
        try:
            self._setup = json.dumps({"path": sys.path, "function": name, "kwargs": self._kwargs}).encode() + b"\n"
        except TypeError as error:
            raise ValueError(f"kwargs of the reward function must be JSON values: {error}") from error
        for _ in range(num_workers):
            self._workers.append(_Worker(self._setup))
        # An empty run waits until every worker has imported the function, so a broken one shows up now.
        failures = _Run(self, [], wait_for_start=True).run().failures
        if failures:
            self.close()
            raise RuntimeError(f"a reward worker could not start with {name}: {failures[0]}")

    def __enter__(self) -> "RewardPool":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def close(self) -> None:
        """Stops the workers; the pool cannot be used afterwards."""
        self._finalizer()

    def __call__(self, prompts: Sequence[str], completions: Sequence[str], infos: Sequence[str]) -> RewardResult:
        """Scores N items; infos are JSON texts. Never raises because of an item."""
        if not len(prompts) == len(completions) == len(infos):
            raise ValueError("prompts, completions and infos differ in length: "
                             f"{len(prompts)}, {len(completions)}, {len(infos)}")
        if not self._finalizer.alive:
            raise RuntimeError("this RewardPool is closed")
        items = list(zip(prompts, completions, infos, strict=True))
        with self._lock:
            if self._num_workers:
                run = _Run(self, items).run()
                return self._collect(run.results, run.timed_out)
            return self._collect([self._score_here(item) for item in items], set())

    def _score_here(self, item) -> tuple[dict | None, str | None]:
        prompt, completion, info = item
        try:
            return worker_module.checked(self._function(prompt, completion, json.loads(info), **self._kwargs)), None
        except Exception as error:  # noqa: BLE001 - counted and reported; KeyboardInterrupt still stops the program
            return None, worker_module.describe(error)

    def _collect(self, results: list, timed_out: set[int]) -> RewardResult:
        names = sorted({name for values, _ in results if values for name in values} - {"reward"})
        rewards = np.full(len(results), self._failure_reward, np.float32)
        components = {name: np.zeros(len(results), np.float32) for name in names}
        for index, (values, _) in enumerate(results):
            if values is not None:
                rewards[index] = values["reward"]
                for name, value in values.items():
                    if name != "reward":
                        components[name][index] = value
        reasons = [reason for values, reason in results if values is None]
        failed = np.array([values is None for values, _ in results], bool)
        return RewardResult(rewards, components, len(timed_out), len(reasons) - len(timed_out),
                            reasons[0] if reasons else None, failed)


class _Run:
    """One pass over `items`: sends chunks, gathers answers, replaces workers that are late or dead."""

    def __init__(self, pool: RewardPool, items: list, *, wait_for_start: bool = False):
        self.pool, self.items, self.wait_for_start = pool, items, wait_for_start
        self.results: list = [None] * len(items)
        self.timed_out: set[int] = set()
        self.failures: list[str] = []  # reasons why workers could not start
        self.queue = deque(range(len(items)))
        self.missing = len(items)
        self.chunk = max(1, min(MAX_CHUNK, len(items) // (4 * max(1, pool._num_workers))))

    def run(self) -> "_Run":
        """Returns when every item has a result (or, with wait_for_start, when every worker is up)."""
        workers = self.pool._workers
        for index, worker in enumerate(workers):
            if worker.process.poll() is not None:  # died between calls: no item is to blame
                worker.stop()
                workers[index] = _Worker(self.pool._setup)
            elif not worker.ready:  # replaced at the end of the last call: do not count the time between calls
                worker.deadline = time.monotonic() + START_LIMIT_S
        while self.missing or self.wait_for_start and not self.failures and not all(w.ready for w in workers):
            if len(self.failures) >= MAX_START_FAILURES:
                for index in [i for i, result in enumerate(self.results) if result is None]:
                    self._finish(index, None, f"no reward worker could be started: {self.failures[-1]}")
                break
            self._step()
        return self

    def _finish(self, index: int, values, reason) -> None:
        self.results[index] = (values, reason)
        self.missing -= 1

    def _step(self) -> None:
        workers = self.pool._workers
        for worker in workers:
            if worker.ready and not worker.owed and self.queue:
                worker.owed.extend(self.queue.popleft() for _ in range(min(self.chunk, len(self.queue))))
                worker.outgoing += json.dumps([[i, *self.items[i]] for i in worker.owed]).encode() + b"\n"
                worker.deadline = time.monotonic() + self.pool._time_limit_s
            worker.send()
        busy = [w for w in workers if w.owed or not w.ready]
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                selector.register(worker.process.stdout, selectors.EVENT_READ)
                if worker.outgoing:
                    selector.register(worker.process.stdin, selectors.EVENT_WRITE)
            selector.select(max(0.0, min(w.deadline for w in busy) - time.monotonic()) + 1e-3)
        for index, worker in enumerate(workers):
            if worker not in busy:
                continue
            # The clock is read before the pipe, so an answer that has arrived is never late.
            now = time.monotonic()
            messages, closed = worker.receive()
            for message in messages:
                self._take(worker, message)
            late = not messages and now > worker.deadline
            if closed or late:
                self._replace(index, late=not closed)

    def _take(self, worker: _Worker, message) -> None:
        worker.deadline = time.monotonic() + self.pool._time_limit_s
        if isinstance(message, dict):
            worker.ready = "ready" in message
            if not worker.ready:
                self.failures.append(message["failed"])
            return
        number, values, reason = message
        worker.owed.popleft()
        self._finish(number, values, reason)

    def _replace(self, index: int, *, late: bool) -> None:
        worker = self.pool._workers[index]
        worker.stop()
        if worker.owed:
            culprit = worker.owed.popleft()
            if late:
                self.timed_out.add(culprit)
                reason = f"the reward function took over {self.pool._time_limit_s} s"
            else:
                reason = f"the worker died (exit status {worker.process.returncode})"
            self._finish(culprit, None, reason)
            self.queue.extendleft(reversed(worker.owed))
        elif not worker.ready:
            self.failures.append(f"exit status {worker.process.returncode} or over {START_LIMIT_S} s at start")
        self.pool._workers[index] = _Worker(self.pool._setup)
