"""The thread that samples while the trainer trains, and the rule that says which weights act at which step.

Segment n (from 1) has the steps (n - 1) T to n T of every environment; update n trains on it and makes version n. With
the schedule `counted`, step t is acted in by version

    v(t) = max(0, floor((t - d) / T)):

an update takes as long as d steps, whatever the clock says. d = 0 waits for every update, d = T is one segment behind,
and with a d between the two a segment has two versions. With `free`, the newest version acts, and at most `ahead`
segments wait for the trainer.
"""

import queue
import threading
from collections.abc import Callable, Iterator
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


class Sampler:
    """Samples segments in a thread. Use it in a `with`.

    Args:
      acting: acting.Remote or acting.Inline.
      ledger: of its fleet; its state after each segment goes with it.
      num_steps: T.
      delay: d of the counted schedule; None is the free one.
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
        ahead: int = 1,
        first: int,
        total: int,
    ):
        self._acting, self._ledger, self._num_steps, self._delay = acting, ledger, num_steps, delay
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
                segment = self._segment(number)
                if self._ended:
                    return
                self._done.put(segment)
        except _EndedError:
            return
        except BaseException as error:  # the trainer's to raise
            self._done.put(error)

    def _segment(self, number: int) -> Segment:
        versions = []

        def noted() -> Iterator[Piece]:
            for piece in self._pieces((number - 1) * self._num_steps, number * self._num_steps):
                versions.extend([piece.version] * (piece.last - piece.first))
                yield piece

        rows = self._acting.segment(noted())
        return Segment(number, rows, np.asarray(versions), self._ledger.get_state())

    def _pieces(self, first: int, last: int) -> Iterator[Piece]:
        if self._delay is not None:
            for begin, end, version in runs_of(first, last, self._num_steps, self._delay):
                yield Piece(begin, end, *self._weights(lambda known, version=version: version in known and version))
            return
        length = 1 if self._acting.by_steps else last - first
        for begin in range(first, last, length):
            yield Piece(begin, begin + length, *self._weights(lambda known: max(known, default=False)))

    def _weights(self, choose: Callable) -> tuple[int, np.ndarray]:
        """Waits until `choose` finds a version among those published; forgets the older ones."""
        with self._news:
            while (version := choose(self._versions)) is False:
                if self._ended:
                    raise _EndedError
                self._news.wait()
            if self._ended:
                raise _EndedError
            for old in [known for known in self._versions if known < version]:
                del self._versions[old]
            return version, self._versions[version]


class _EndedError(Exception):
    """The trainer has ended."""
