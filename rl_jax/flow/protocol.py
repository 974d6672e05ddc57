"""What every link between trainer and samplers can do."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow

Params = Any  # a nested dict of arrays, as in core.types, which imports jax


class Group(NamedTuple):
    """A finished group: the rows of one prompt that are compared with each other.

    Attributes:
      number: unique in the run, such as its admission number. Putting a number again changes nothing.
      finished: the sampler's counter when its last row ended. `take` hands out the smallest first.
      table: its rows, as experience.trajectory.to_table or flow.rows.to_table makes them.
    """

    number: int
    finished: int
    table: pyarrow.Table


class Link(Protocol):
    """Both sides of a link. A side that may not call a method gets a RuntimeError.

    What waits takes `timeout_s` and returns None, [] or False when the time is over; the caller decides what that
    means. 0 looks once, without waiting.
    """

    def resume(self, step: int) -> None:
        """Trainer, once, before it takes: what was taken or trained after the checkpoint of `step` waits again.

        Weights of later versions are withdrawn.

        Raises:
          ValueError: if groups of a later step were already settled, and are gone.
        """

    def publish(self, version: int, params: Params) -> None:
        """Trainer: new weights. They are visible as a whole or not at all; the last few versions stay readable.

        An array may be given in pieces, as a shards.Cut.
        """

    def waiting(self) -> list[tuple[int, int]]:
        """Trainer: (finished, number) of the groups that can be taken, the oldest first."""

    def take(self, n: int, timeout_s: float = 0.0, numbers: Sequence[int] | None = None) -> list[Group]:
        """Trainer: the `n` groups that finished first (or those with these `numbers`), or [] if they are not there.

        Raises:
          ValueError: if there are not n different `numbers`, or one was taken before.
        """

    def acknowledge(self, step: int, numbers: Sequence[int], dropped: Sequence[int] = ()) -> None:
        """Trainer, after step `step` and BEFORE its checkpoint: these groups were used (trained or dropped) in it.

        Args:
          step: of the trainer.
          numbers: of groups that it took.
          dropped: of groups that their sampler threw away before it put them, as it told with the groups of this step.

        Raises:
          ValueError: if a number was not taken, or the step not above the last one.
        """

    def settle(self, step: int) -> None:
        """Trainer, when nothing older than the checkpoint of `step` will be restored: forgets the groups up to it."""

    def newest(self, after: int = -1, timeout_s: float = 0.0) -> tuple[int, Params] | None:
        """Sampler: (version, params) of the newest weights, or None while that is version `after`.

        A version below `after` means that the trainer went back to a checkpoint.
        """

    def weights(self, version: int, timeout_s: float = 0.0) -> Params | None:
        """Sampler: the weights of exactly this version, or None while they are not published.

        Raises:
          LookupError: if they were published and are gone.
        """

    def slices(self, version: int | None = None, timeout_s: float = 0.0) -> Any:
        """Sampler: a shards.Slices of this version, or of the newest, of which it reads parts; None as `weights`.

        Raises:
          LookupError: if they were published and are gone.
        """

    def put(self, groups: Sequence[Group], timeout_s: float = 0.0) -> bool:
        """Sampler: hands over finished groups. Once True, they survive the death of either side (not in Local).

        False if the link is full: some of them may be stored; put them all again.
        """

    def known(self, numbers: Sequence[int]) -> set[int]:
        """Sampler: which of these numbers were put before, by whom ever. For a sampler that comes back."""

    def say(self, name: str, value: Any) -> bool:
        """Both: leaves a JSON value under a name ([a-z0-9_-]): a heartbeat, "end", "quiesce". The last one counts.

        False if the trainer is away, and nothing was said.
        """

    def hear(self, name: str) -> Any:
        """Both: the value last said under a name; None if there is none."""

    def lost_s(self) -> float:
        """Sampler: for how many seconds the trainer could not be reached; 0 if it can, or nobody knows (a folder)."""

    def close(self) -> None:
        """Ends this side. What was put stays (not in Local)."""
