"""Who has which group: the bookkeeping that all links share. Pure: no files, no clocks.

    put -> waiting -> take -> taken -> acknowledge(step) -> trained in step -> settle(step) -> done
              ^                 |                                |
              +---- resume -----+----------- resume(step') ------+     what the trainer lost waits again

Why a group is neither lost nor trained twice. A sampler puts a group until it is stored, and a number is stored once:
`add` refuses numbers that wait, are taken, trained or done. The trainer acknowledges before it saves, so the
checkpoint of step s exists only if the groups of all steps up to s are entered. After a kill it resumes at the step of
its checkpoint, say s: groups entered for later steps, or for none, wait again; those up to s do not. Groups are
deleted only by `settle`, for steps that a checkpoint holds.

Numbers that a sampler drops before it puts them are entered with the step whose groups tell of them, and are done with
that step: else they would stay gaps among those that are done, and `Done` would grow with the run.
"""

from collections.abc import Iterable, Sequence
from typing import Any


class Done:
    """Set of numbers that are finished with, small because nearly all below its mark are in it."""

    def __init__(self, below: int = 0, others: Iterable[int] = ()):
        self.below, self.others = below, set(others)
        self._raise_mark()

    def __contains__(self, number: int) -> bool:
        return number < self.below or number in self.others

    def add(self, numbers: Iterable[int]) -> None:
        """Adds numbers."""
        self.others.update(number for number in numbers if number >= self.below)
        self._raise_mark()

    def _raise_mark(self) -> None:
        while self.below in self.others:
            self.others.discard(self.below)
            self.below += 1


class Ledger:
    """Groups by number; each is waiting, taken, trained in a step, or done.

    Attributes:
      waiting: number -> finished.
      taken: number -> finished.
      trained: step -> number -> finished.
      dropped: step -> numbers that are never put.
      settled: the last step that was settled; -1 if none.
      done: numbers that were settled.
    """

    def __init__(self, settled: int = -1, done: Done | None = None):
        self.waiting: dict[int, int] = {}
        self.taken: dict[int, int] = {}
        self.trained: dict[int, dict[int, int]] = {}
        self.dropped: dict[int, list[int]] = {}
        self.settled, self.done = settled, done or Done()

    def knows(self, number: int) -> bool:
        """Whether this group was put before."""
        held = number in self.waiting or number in self.taken or any(number in row for row in self.trained.values())
        return held or number in self.done

    def add(self, number: int, finished: int) -> bool:
        """Enters a new group; False if its number is known."""
        if self.knows(number):
            return False
        self.waiting[number] = finished
        return True

    def in_order(self) -> list[tuple[int, int]]:
        """(finished, number) of those that wait, in the order in which they are taken."""
        return sorted((finished, number) for number, finished in self.waiting.items())

    def take(self, n: int, numbers: Sequence[int] | None = None) -> list[int]:
        """Takes n groups, or none of them if they are not all there; see `Link.take`."""
        if numbers is None:
            numbers = [number for _, number in self.in_order()[:n]]
        else:
            gone = [number for number in numbers if self.knows(number) and number not in self.waiting]
            if gone or len(set(numbers)) != n:
                wrong = f"group {gone[0]} was taken before" if gone else f"{len(set(numbers))} different numbers"
                raise ValueError(f"take({n}) of groups {list(numbers)[:8]}: {wrong}; name n groups that wait")
        if len(numbers) < n or any(number not in self.waiting for number in numbers):
            return []
        for number in numbers:
            self.taken[number] = self.waiting.pop(number)
        return list(numbers)

    def check_acknowledge(self, step: int, numbers: Sequence[int]) -> None:
        """Raises ValueError if `acknowledge` would be wrong."""
        last = max([self.settled, *self.trained])
        if step <= last:
            raise ValueError(f"acknowledge(step={step}): step {last} was acknowledged before; steps only go up")
        for number in numbers:
            if number not in self.taken:
                raise ValueError(f"acknowledge(step={step}): group {number} was not taken; take it first")

    def acknowledge(self, step: int, numbers: Sequence[int], dropped: Iterable[int] = ()) -> None:
        """Enters groups as used in a step, and numbers that are never put."""
        self.check_acknowledge(step, numbers)
        self.trained[step] = {number: self.taken.pop(number) for number in numbers}
        self.dropped[step] = sorted(dropped)

    def settle(self, step: int) -> list[int]:
        """Forgets the groups of all steps up to `step`; returns their numbers."""
        forgotten = [number for old in self.trained if old <= step for number in self.trained[old]]
        self.done.add([*forgotten, *(number for old in self.dropped if old <= step for number in self.dropped[old])])
        self.trained = {old: row for old, row in self.trained.items() if old > step}
        self.dropped = {old: row for old, row in self.dropped.items() if old > step}
        self.settled = max(self.settled, step)
        return forgotten

    def resume(self, step: int) -> list[int]:
        """Back to the checkpoint of `step`; returns the later steps that are undone.

        Raises:
          ValueError: if a later step was settled.
        """
        if self.settled > step:
            raise ValueError(
                f"the trainer resumes at step {step}, but groups up to step {self.settled} were settled and are gone: "
                "restore a newer checkpoint, or start in a new folder"
            )
        undone = [later for later in self.trained if later > step]
        self.dropped = {old: row for old, row in self.dropped.items() if old <= step}  # the groups tell of them again
        for row in [self.taken, *(self.trained.pop(later) for later in undone)]:
            self.waiting |= row
        self.taken = {}
        return undone

    def state(self) -> dict[str, Any]:
        """A JSON value from which `from_state` makes the same ledger; what is taken waits again in it."""
        rows = {str(step): sorted(row.items()) for step, row in self.trained.items()}
        waiting = sorted((self.waiting | self.taken).items())
        done = {"below": self.done.below, "others": sorted(self.done.others)}
        dropped = {str(step): row for step, row in self.dropped.items() if row}
        return {"waiting": waiting, "trained": rows, "dropped": dropped, "settled": self.settled, "done": done}


def from_state(state: dict[str, Any]) -> Ledger:
    """The ledger of `Ledger.state`."""
    ledger = Ledger(state["settled"], Done(**state["done"]))
    ledger.waiting = dict(map(tuple, state["waiting"]))
    ledger.trained = {int(step): dict(map(tuple, row)) for step, row in state["trained"].items()}
    ledger.dropped = {int(step): row for step, row in state.get("dropped", {}).items()}
    return ledger
