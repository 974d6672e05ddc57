"""A link within one process: two loops that take turns, or two threads."""

import functools
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from rl_jax.flow import shards
from rl_jax.flow.ledger import Ledger, from_state
from rl_jax.flow.protocol import Group, Params
from rl_jax.flow.shards import Slices

MAX_WAITING = 4096
KEEP = 2  # versions of the weights that stay readable: one in use, one to change to
_NAME = re.compile(r"[a-z0-9_-]{1,100}\Z")


def check_word(name: str, value: Any) -> str:
    """The JSON of a value to be said.

    Raises:
      ValueError: if the name or the value cannot be said.
    """
    if not _NAME.match(name):
        raise ValueError(f"say({name!r:.120}): a name has 1 to 100 of a-z, 0-9, _ and -")
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"say({name!r}, {value!r:.80}): not a JSON value ({error})") from error


class Memory:
    """Published weights, the newest `keep` versions of them.

    Args:
      keep: number of versions.
    """

    def __init__(self, keep: int = KEEP):
        self._keep, self._weights = keep, {}
        self._top = -1

    def publish(self, version: int, params: Params) -> None:
        """Adds a version; the oldest ones go."""
        self._weights[version] = params
        self._top = max(self._weights)
        for old in sorted(self._weights)[: -self._keep]:
            del self._weights[old]

    def withdraw(self, above: int) -> None:
        """Removes later versions."""
        self._weights = {version: params for version, params in self._weights.items() if version <= above}
        self._top = max(self._weights, default=-1)

    def newest(self, after: int) -> tuple[int, Params] | None:
        """See `Link.newest`."""
        return (self._top, self._weights[self._top]) if self._weights and self._top != after else None

    def versions(self) -> list[int]:
        """Those that are readable."""
        return sorted(self._weights)

    def exact(self, version: int) -> Params | None:
        """See `Link.weights`."""
        if version not in self._weights and self._weights and version < self._top:
            raise LookupError(gone(version, self._weights))
        return self._weights.get(version)

    def of(self, version: int | None) -> tuple[int, Params] | None:
        """(version, weights) of this one, or of the newest; see `exact`."""
        if version is None:
            return self.newest(-1)
        found = self.exact(version)
        return None if found is None else (version, found)


def _whole(params: Params) -> Params:
    return shards.whole(shards.cuts_of(params)) if shards.is_cut(params) else params


def gone(version: int, left) -> str:
    """The message for weights that were published and removed."""
    return f"the weights of version {version} are gone: versions {sorted(left)} are left; keep more of them"


class Local:
    """The link of one process (see `protocol.Link`). Nothing survives the process but `state`, which a program saves.

    The weights are handed over as they are: publish arrays that no later step is given to overwrite.

    Args:
      max_waiting: groups that may wait; more are refused until some are taken.
      keep: versions of the weights that stay readable.
    """

    def __init__(self, *, max_waiting: int = MAX_WAITING, keep: int = KEEP):
        self._ledger, self._groups, self._memory = Ledger(), {}, Memory(keep)
        self._words: dict[str, str] = {}
        self._max_waiting, self._changed = max_waiting, threading.Condition()

    def resume(self, step: int) -> None:
        """See `protocol.Link`."""
        with self._changed:
            self._ledger.resume(step)
            self._memory.withdraw(step)
            self._changed.notify_all()

    def publish(self, version: int, params: Params) -> None:
        """See `protocol.Link`."""
        with self._changed:
            self._memory.publish(version, params)
            self._changed.notify_all()

    def waiting(self) -> list[tuple[int, int]]:
        """See `protocol.Link`."""
        with self._changed:
            return self._ledger.in_order()

    def take(self, n: int, timeout_s: float = 0.0, numbers: Sequence[int] | None = None) -> list[Group]:
        """See `protocol.Link`."""
        found = self._wait(lambda: self._ledger.take(n, numbers), timeout_s)
        return [self._groups[number] for number in found]

    def acknowledge(self, step: int, numbers: Sequence[int], dropped: Sequence[int] = ()) -> None:
        """See `protocol.Link`."""
        with self._changed:
            self._ledger.acknowledge(step, numbers, dropped)

    def settle(self, step: int) -> None:
        """See `protocol.Link`."""
        with self._changed:
            for number in self._ledger.settle(step):
                del self._groups[number]

    def newest(self, after: int = -1, timeout_s: float = 0.0) -> tuple[int, Params] | None:
        """See `protocol.Link`."""
        found = self._wait(lambda: self._memory.newest(after), timeout_s)
        return found and (found[0], _whole(found[1]))

    def weights(self, version: int, timeout_s: float = 0.0) -> Params | None:
        """See `protocol.Link`."""
        found = self._wait(lambda: self._memory.exact(version), timeout_s)
        return found and _whole(found)

    def slices(self, version: int | None = None, timeout_s: float = 0.0) -> Slices | None:
        """See `protocol.Link`."""
        found = self._wait(lambda: self._memory.of(version), timeout_s)
        if found is None:
            return None
        cuts = shards.cuts_of(found[1])
        return Slices(found[0], shards.leaves_of(cuts), functools.partial(shards.read, cuts))

    def put(self, groups: Sequence[Group], timeout_s: float = 0.0) -> bool:
        """See `protocol.Link`."""
        return all(self._wait(lambda group=group: self._put(group), timeout_s) for group in groups)

    def _put(self, group: Group) -> bool:
        if self._ledger.knows(group.number):
            return True
        if len(self._ledger.waiting) >= self._max_waiting:
            return False
        self._groups[group.number] = group
        self._ledger.add(group.number, group.finished)
        self._changed.notify_all()
        return True

    def known(self, numbers: Sequence[int]) -> set[int]:
        """See `protocol.Link`."""
        with self._changed:
            return {number for number in numbers if self._ledger.knows(number)}

    def say(self, name: str, value: Any) -> bool:
        """See `protocol.Link`."""
        with self._changed:
            self._words[name] = check_word(name, value)
            return True

    def hear(self, name: str) -> Any:
        """See `protocol.Link`."""
        with self._changed:
            return json.loads(self._words.get(name, "null"))

    def state(self) -> tuple[dict[str, Any], list[Group]]:
        """(JSON value, groups): what a checkpoint holds of the link. What is taken waits again in it."""
        with self._changed:
            return self._ledger.state(), [self._groups[number] for number in sorted(self._groups)]

    def restore(self, state: tuple[dict[str, Any], list[Group]]) -> None:
        """Back to what `state` returned."""
        with self._changed:
            self._ledger, self._groups = from_state(state[0]), {group.number: group for group in state[1]}

    def lost_s(self) -> float:
        """See `protocol.Link`."""
        return 0.0

    def close(self) -> None:
        """See `protocol.Link`."""

    def _wait(self, look: Callable[[], Any], timeout_s: float) -> Any:
        """The first true result of `look`, or its last one when the time is over."""
        end = time.monotonic() + timeout_s
        with self._changed:
            while not (result := look()):
                left = end - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return result
