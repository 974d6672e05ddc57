"""Runs a reward function over many samples in worker processes with a time limit per item. No jax.

Workers are new interpreters (subprocess, never a fork of this one: jax holds threads) running `worker.py`; data is
passed as JSON lines and the function by name. A worker imports the function and forks a child for each item, so an item
finds neither what another has left in memory nor its processes. It answers after the child and all that the child
started have ended. An item that raises, is late, dies or writes anything else than its reply scores `failure_reward`
and is counted. So an item's score depends neither on the number of workers nor on the other items.

Functions of rl_jax run no code of a completion; one child scores many of their items (replies.shares_process).
"""

import json
import os
import selectors
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rl_jax.rewards import replies
from rl_jax.rewards.handles import START_LIMIT_S, WorkerHandle, stop_all
from rl_jax.rewards.output import Output

SILENCE_S = 60.0  # a worker that says nothing for this long after an item's time limit is itself in trouble
MAX_WAIT_S = 3600.0
MAX_CHUNK = 64
MAX_START_FAILURES = 3
MAX_BATCH_NAMES = 4  # times the names that an item may have


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


def function_name(function: Callable) -> str:
    """The name "module:qualname" of an importable function.

    Raises:
      ValueError: for any other callable; the message says what to do.
    """
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    help_text = (
        "; worker processes import the function by name: define it at the top level of an importable module, "
        "pass its fixed arguments as kwargs=, or use num_workers=0 (this process, no time limit)"
    )
    if not module or not qualname or "<" in qualname or module == "__main__":
        raise ValueError(f"reward function {function!r} cannot be imported by name" + help_text)
    try:
        resolved = replies.resolve(f"{module}:{qualname}")
    except (ImportError, AttributeError) as error:
        raise ValueError(f"reward function {module}:{qualname} cannot be imported ({error})" + help_text) from error
    if resolved is not function:
        raise ValueError(f"{module}:{qualname} names another object than {function!r}" + help_text)
    return f"{module}:{qualname}"


class RewardPool:
    """Callable over (prompts, completions, infos); see the head of this file. Use it in a `with`, or close() it."""

    def __init__(
        self,
        reward_fn: Callable,
        *,
        kwargs: Mapping | None = None,
        num_workers: int = 2,
        time_limit_s: float = 1.0,
        failure_reward: float = 0.0,
        memory_gb: float = 4.0,
    ):
        """Starts the workers and waits until each has imported the function.

        Args:
          reward_fn: (prompt, completion, info: dict, **kwargs) -> {"reward": float, component: float, ...}.
          kwargs: JSON values.
          num_workers: 0 runs any callable in this process, without the time limit.
          time_limit_s: per item, in seconds.
          failure_reward: reward of an item that fails.
          memory_gb: GiB of address space that an item may take on top of what the import takes; inf: any.

        Raises:
          ValueError: if an argument is invalid.
          RuntimeError: if a worker cannot start.
        """
        if num_workers < 0 or not time_limit_s > 0:
            raise ValueError(f"num_workers must be >= 0 and time_limit_s > 0, got {num_workers} and {time_limit_s}")
        if not memory_gb > 0:
            raise ValueError(f"memory_gb must be > 0 (inf: no limit), got {memory_gb}")
        self._function, self._kwargs = reward_fn, dict(kwargs or {})
        self._max_names = replies.hook(reward_fn, "max_names", self._kwargs, replies.MAX_NAMES)
        self._output = Output()
        self._num_workers, self._time_limit_s, self._failure_reward = num_workers, time_limit_s, failure_reward
        self._lock = threading.Lock()
        self._workers: list[WorkerHandle] = []
        self._finalizer = weakref.finalize(self, stop_all, self._workers)
        if not num_workers:
            return
        name = function_name(reward_fn)
        try:
            setup = {
                "path": sys.path,
                "function": name,
                "kwargs": self._kwargs,
                "time_limit_s": time_limit_s,
                "memory_gb": memory_gb,
                "parent": os.getpid(),
            }
            self._setup = json.dumps(setup).encode() + b"\n"
        except TypeError as error:
            raise ValueError(f"kwargs of the reward function must be JSON values: {error}") from error
        for _ in range(num_workers):
            self._workers.append(WorkerHandle(self._setup))
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
            raise ValueError(
                f"prompts, completions and infos differ in length: {len(prompts)}, {len(completions)}, {len(infos)}"
            )
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
            return replies.checked(
                self._function(prompt, completion, json.loads(info), **self._kwargs), self._max_names
            ), None
        except Exception as error:  # noqa: BLE001 - counted and reported; KeyboardInterrupt still stops the program
            return None, replies.describe(error)

    def _collect(self, results: list, timed_out: set[int]) -> RewardResult:
        # Items can make up names. The most frequent stay, so that one item does not crowd out those of the others.
        counts = Counter(name for values, _ in results if values for name in values if name != "reward")
        names = sorted(sorted(counts, key=lambda name: (-counts[name], name))[: MAX_BATCH_NAMES * self._max_names])
        rewards = np.full(len(results), self._failure_reward, np.float32)
        components = {name: np.zeros(len(results), np.float32) for name in names}
        for index, (values, _) in enumerate(results):
            if values is not None:
                rewards[index] = values["reward"]
                for name, value in values.items():
                    if name in components:
                        components[name][index] = value
        reasons = [reason for values, reason in results if values is None]
        failed = np.array([values is None for values, _ in results], bool)
        return RewardResult(
            rewards, components, len(timed_out), len(reasons) - len(timed_out), reasons[0] if reasons else None, failed
        )


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
                workers[index] = WorkerHandle(self.pool._setup)
            elif not worker.ready:  # replaced at the end of the last call: do not count the time between calls
                worker.deadline = time.monotonic() + START_LIMIT_S
        while self.missing or self.wait_for_start and not self.failures and not all(w.ready for w in workers):
            if len(self.failures) >= MAX_START_FAILURES:
                for index in [i for i, result in enumerate(self.results) if result is None]:
                    self._finish(index, None, f"no reward worker could be started: {self.failures[-1]}")
                break
            self._step()
        for worker in workers:
            self.pool._output.drain(worker.process.stderr.fileno(), worker.printed)
            worker.printed = b""
        self.pool._output.end_call()
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
                worker.deadline = time.monotonic() + self.pool._time_limit_s + SILENCE_S
            worker.send()
        busy = [w for w in workers if w.owed or not w.ready]
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                selector.register(worker.process.stdout, selectors.EVENT_READ)
                selector.register(worker.process.stderr, selectors.EVENT_READ)
                if worker.outgoing:
                    selector.register(worker.process.stdin, selectors.EVENT_WRITE)
            wait = max(0.0, min(w.deadline for w in busy) - time.monotonic()) + 1e-3
            selector.select(min(wait, MAX_WAIT_S))
        for index, worker in enumerate(workers):
            if worker not in busy:
                continue
            # The clock is read before the pipe, so an answer that has arrived is never late.
            now = time.monotonic()
            worker.printed, _ = self.pool._output.read(worker.process.stderr.fileno(), worker.printed)
            lines, closed = worker.receive()
            try:
                for line in lines:
                    self._take(worker, json.loads(line))
            except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
                self._replace(index, f"the worker sent no valid answer ({replies.describe(error):.200})")
                continue
            if closed:
                self._replace(index, None)
            elif not lines and now > worker.deadline:
                self._replace(index, f"the worker was silent for {SILENCE_S} s after the item's time", late=True)

    def _take(self, worker: WorkerHandle, message) -> None:
        """One message of a worker; raises if it is none."""
        worker.deadline = time.monotonic() + self.pool._time_limit_s + SILENCE_S
        if isinstance(message, dict):
            if "failed" in message:
                self.failures.append(str(message["failed"])[: replies.MAX_REASON])
            else:
                worker.ready = message["ready"] is True
            return
        number, result, late = message
        values, reason = replies.outcome(result, self.pool._max_names)
        if number != worker.owed[0] or not isinstance(late, bool):
            raise ValueError("it is not about the item that was asked for")
        worker.owed.popleft()
        if late:
            self.timed_out.add(number)
        self._finish(number, values, reason)

    def _replace(self, index: int, reason: str | None, *, late: bool = False) -> None:
        """Puts a new worker in the place of one that failed; `reason` is that of its item, None if the worker died."""
        worker = self.pool._workers[index]
        self.pool._output.drain(worker.process.stderr.fileno(), worker.printed)
        worker.stop()
        if worker.owed:
            culprit = worker.owed.popleft()
            if late:
                self.timed_out.add(culprit)
            self._finish(culprit, None, reason or f"the worker died (exit status {worker.process.returncode})")
            self.queue.extendleft(reversed(worker.owed))
        elif not worker.ready:
            self.failures.append(f"exit status {worker.process.returncode} or over {START_LIMIT_S} s at start")
        self.pool._workers[index] = WorkerHandle(self.pool._setup)
