"""What makes segments, in a thread or a process beside the trainer, and the rule that says which weights act when.

Segment n (from 1) has the steps (n - 1) T to n T of every environment; update n trains on it and makes version n. With
the schedule `counted`, step t is acted in by version

    v(t) = max(0, floor((t - d) / T)):

an update takes as long as d steps, whatever the clock says. d = 0 waits for every update, d = T is one segment behind,
and with a d between the two a segment has two versions. With `free`, the newest version acts, and at most `ahead`
segments wait for the trainer. What acted is noted, and can be done again (`recorded`).
"""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_jax.rollout.actors.acting import Piece
from rl_jax.rollout.envs.steps import Transitions


class Segment(NamedTuple):
    """What one update trains on.

    Attributes:
      number: n, from 1.
      rows: Transitions [E, T].
      versions: int64 [T], of the weights that acted in each step.
      after: where the environments are after it, as the ledger's state.
    """

    number: int
    rows: Transitions
    versions: np.ndarray
    after: Any


def version_at(t: int, num_steps: int, delay: int) -> int:
    """v(t) of the counted schedule. num_steps: T. delay: d."""
    return max(0, (t - delay) // num_steps)


def versions_behind(num_steps: int, delay: int) -> int:
    """How many versions before the newest may act in the next segment: ceil(d / T)."""
    return -(-delay // num_steps)


def runs_of(first: int, last: int, num_steps: int, delay: int) -> list[tuple[int, int, int]]:
    """Steps first to last as (first, last, version) of the counted schedule, each with one version."""
    result = []
    while first < last:
        version = version_at(first, num_steps, delay)
        end = min(last, (version + 1) * num_steps + delay)  # the step at which the next version enters
        result.append((first, end, version))
        first = end
    return result


class Schedule(NamedTuple):
    """Which version acts at which step of a segment.

    Attributes:
      num_steps: T.
      delay: d of the counted schedule; None is the free one.
      recorded: segment -> versions [T]: of a free run that is done again.
    """

    num_steps: int
    delay: int | None
    recorded: Mapping[int, Sequence[int]] | None = None

    def runs(self, number: int, *, by_steps: bool) -> list[tuple[int, int, int | None]]:
        """Segment `number` as (first, last, version); None is the newest version.

        Args:
          number: from 1.
          by_steps: with the free schedule, whether the newest is looked for at every step, or once.

        Raises:
          ValueError: if the recorded run has no such segment, or one of another length.
        """
        first, last = (number - 1) * self.num_steps, number * self.num_steps
        if self.recorded is not None:
            versions = self.recorded.get(number, ())
            if len(versions) != self.num_steps:
                raise ValueError(
                    f"segment {number}: the recorded run has {len(versions)} steps of it, not {self.num_steps}: its "
                    "config is another, or it has not come so far"
                )
            cuts = [i for i in range(self.num_steps) if i == 0 or versions[i] != versions[i - 1]]
            ends = [*cuts[1:], self.num_steps]
            return [(first + i, first + end, int(versions[i])) for i, end in zip(cuts, ends, strict=True)]
        if self.delay is not None:
            return runs_of(first, last, self.num_steps, self.delay)
        length = 1 if by_steps else self.num_steps
        return [(begin, begin + length, None) for begin in range(first, last, length)]


def make_segment(number: int, acting, ledger, schedule: Schedule, weights: Callable) -> Segment:
    """Samples a segment.

    Args:
      number: n; the ones before it were made, or the ledger is where they ended.
      acting: acting.Remote or acting.Inline, begun.
      ledger: of its fleet.
      schedule: which version acts when.
      weights: version, or None for the newest -> (version, params float32 [P]); waits for it.
    """
    versions = []

    def pieces() -> Iterator[Piece]:
        for first, last, wanted in schedule.runs(number, by_steps=acting.by_steps):
            version, params = weights(wanted)
            versions.extend([version] * (last - first))
            yield Piece(first, last, version, params)

    rows = acting.segment(pieces())
    return Segment(number, rows, np.asarray(versions), ledger.get_state())


class Sampler:
    """Samples segments in a thread. Use it in a `with`.

    Args:
      acting: acting.Remote or acting.Inline.
      ledger: of its fleet; its state after each segment goes with it.
      num_steps: T.
      delay: d of the counted schedule; None is the free one.
      recorded: of a free run that is done again (Schedule).
      ahead: segments that may wait, in the free schedule.
      first: number of the first segment.
      total: number of the last one.
    """

    def __init__(
        self,
        acting,
        ledger,
        *,
        num_steps: int,
        delay: int | None,
        recorded: Mapping[int, Sequence[int]] | None = None,
        ahead: int = 1,
        first: int,
        total: int,
    ):
        self._acting, self._ledger, self._schedule = acting, ledger, Schedule(num_steps, delay, recorded)
        self._numbers = range(first, total + 1)
        # The counted schedule is bounded by the versions that it waits for.
        self._done = queue.Queue(ahead if delay is None else 0)
        self._news, self._versions, self._ended = threading.Condition(), {}, False
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        with self._news:
            self._ended = True
            self._news.notify_all()
        while self._thread.is_alive():  # it may wait for room
            try:
                self._done.get(timeout=0.05)
            except queue.Empty:
                continue

    def publish(self, version: int, params: np.ndarray) -> None:
        """Gives the actors a version, float32 [P]."""
        with self._news:
            self._versions[version] = params
            self._news.notify_all()

    def take(self) -> Segment:
        """The next segment; waits for it. Raises what the thread has raised."""
        result = self._done.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def _run(self) -> None:
        try:
            self._acting.begin()
            for number in self._numbers:
                segment = make_segment(number, self._acting, self._ledger, self._schedule, self._weights)
                if self._ended:
                    return
                self._done.put(segment)
        except _EndedError:
            return
        except BaseException as error:  # the trainer's to raise
            self._done.put(error)

    def _weights(self, version: int | None) -> tuple[int, np.ndarray]:
        """Waits until this version, or any, is published; forgets the older ones."""
        with self._news:
            self._news.wait_for(
                lambda: self._ended or (self._versions if version is None else version in self._versions)
            )
            if self._ended:
                raise _EndedError
            version = max(self._versions) if version is None else version
            for old in [known for known in self._versions if known < version]:
                del self._versions[old]
            return version, self._versions[version]


class _EndedError(Exception):
    """The trainer has ended."""
