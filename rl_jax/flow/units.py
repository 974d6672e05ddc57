"""The storage units of a transfer queue, as one store: row i is on unit i mod N. No jax.

    units = Units(["grpc://host-a:4001", "grpc://host-b:4001"], token=...)
    queue = TransferQueue(tasks, store=units)          # the controller: which columns are there, who has had which row
    units.put({7: {"response": ids}})                  # anybody, such as a sampler
    queue.announce(units.news().there)                 # the controller hears of it
    queue.take("judge", 32)                            # and reads these columns of these rows

A unit that is away is waited for: it comes back with its folder, and calls are made again (a put changes nothing the
second time). What a unit has lost, with its folder, is an error that names the row.
"""

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow
from pyarrow import flight

from rl_jax.flow import streams
from rl_jax.flow.calls import Caller
from rl_jax.flow.shelf import from_bytes, to_bytes

PATIENCE_S = 1800.0
MOST = 4096  # rows of a call
MOST_BYTES = 64 << 20  # of the rows of a put, or one row; a unit takes storage.MAX_PUT
_TRY_S = 5.0  # for a call that nobody waits for
_LOOK_S = 0.2  # for a unit that does not answer, before whoever waits may look around


class News(NamedTuple):
    """What has come and gone in the units.

    Attributes:
      there: row -> columns that have come.
      gone: rows that were forgotten, or are lost.
    """

    there: dict[int, list[str]]
    gone: list[int]


class Units:
    """All units, for one process. Not for several threads.

    Args:
      addresses: `StorageUnit.address` of unit 0, 1, ...; the same order for all who share them.
      token: the units'.
      run: a word of the run, "" for none; a unit refuses who names another one than the first did.
      tls_root: certificate in PEM that the units' are checked against, for "grpc+tls://..."; None: the system's.
      patience_s: how long a unit that is away, or full, is waited for.
      call_s: seconds for a call, the transfer included.

    Attributes:
      run: see above.
      wait: (look, what) -> the first true result of look; replaces the waiting by patience_s.

    Raises:
      ValueError: if an address or the token cannot be.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        token: str,
        run: str = "",
        tls_root: bytes | None = None,
        patience_s: float = PATIENCE_S,
        call_s: float = 600.0,
    ):
        if not addresses or len(set(addresses)) != len(addresses):
            raise ValueError(f"storage units {list(addresses)}: give the addresses of one or more, each once")
        self._units = [
            _Unit(address, token=token, call_s=call_s, tls_root=tls_root, whose="storage unit") for address in addresses
        ]
        self.run, self._patience, self._known = run, patience_s, [set() for _ in addresses]
        self.wait: Callable[[Callable[[], Any], str], Any] = self._wait

    def __len__(self) -> int:
        """N."""
        return len(self._units)

    def put(self, rows: Mapping[int, Mapping[str, Any]]) -> None:
        """Stores columns of rows: number -> column -> value, as rows.to_table carries them. Returns once they are kept.

        Raises:
          PermissionError: if the token is wrong.
          RuntimeError: if a unit refuses it: too large, another value than before, another run; says which.
          TimeoutError: if a unit is away, or full, for patience_s.
        """
        parts: dict[tuple[int, tuple[str, ...]], dict[int, Mapping[str, Any]]] = {}
        for number, values in rows.items():
            parts.setdefault((number % len(self), tuple(sorted(values))), {})[number] = values
        for (index, _), part in parts.items():
            for rows_of_call in _cut(part):
                content = to_bytes(rows_of_call)
                self._call(index, lambda unit, options, content=content: unit.put(content, options), "room in")

    def get(self, numbers: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """These columns of these rows, in their order.

        Raises:
          LookupError: if one is not there; names it.
          PermissionError, RuntimeError, TimeoutError: see `put`.
        """
        found: dict[int, dict[str, Any]] = {}
        for index, own in self._spread(numbers):
            words = {"numbers": own, "columns": list(columns)}
            (rows,) = self._call(index, lambda unit, options, words=words: [unit.get(words, options)])
            found |= rows
        return [found[number] for number in numbers]

    def forget(self, numbers: Iterable[int], *, waits: bool = True) -> bool:
        """Removes rows, also those that never came: they may not come again.

        Args:
          numbers: of the rows; a second time changes nothing.
          waits: False: a unit that is away, or refuses, is passed over, and nothing is raised.

        Returns:
          Whether all units have forgotten them.

        Raises:
          PermissionError, RuntimeError, TimeoutError: if waits, see `put`.
        """
        passed: set[int] = set()
        for index, own in self._spread(list(numbers)):
            ask = functools.partial(_forget, numbers=own)
            if waits:
                self._call(index, ask)
            elif index not in passed and not self._tried(index, ask):
                passed.add(index)
        return not passed

    def news(self) -> News:
        """What has come and gone since the last call. Of a unit that is another process now, all is compared again."""
        there: dict[int, list[str]] = {}
        gone = []
        for index, known in enumerate(self._known):
            found = self._call(index, lambda unit, options: unit.news(options))
            come = {number: columns for number, columns in found["there"]}
            lost = known - come.keys() if found["whole"] else set(found["gone"])
            known.difference_update(lost)
            known.update(come)
            gone += sorted(lost)
            there |= come
        return News(there, gone)

    def end(self, timeout_s: float = 0.0, *, complete: bool = True) -> None:
        """Tells the units that the controller leaves. One that is away for `timeout_s`, or refuses, does not hear it.

        Args:
          timeout_s: for all of them together.
          complete: whether the run is, so that a unit's work is done too.
        """
        last = time.monotonic() + timeout_s
        for index in range(len(self)):
            ask = functools.partial(_end, complete=complete)
            self._tried(index, ask, max(0.0, last - time.monotonic()))

    def close(self) -> None:
        """Ends the connections."""
        for unit in self._units:
            unit.close()

    def _spread(self, numbers: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """(unit, numbers of its rows), MOST in each."""
        for index in range(len(self)):
            for own in _chunks([number for number in numbers if number % len(self) == index]):
                yield index, own

    def _entering(self, index: int) -> dict[str, Any]:
        return {"index": index, "count": len(self), "run": self.run}

    def _call(
        self, index: int, call: Callable[["_Unit", flight.FlightCallOptions], Any], what: str = "answer of"
    ) -> Any:
        unit = self._units[index]

        def look() -> Any:
            return unit.attempt(self._entering(index), lambda options: call(unit, options), _LOOK_S)

        return self.wait(look, f"{what} storage unit {index} at {unit.address}")

    def _tried(
        self, index: int, call: Callable[["_Unit", flight.FlightCallOptions], Any], timeout_s: float = 0.0
    ) -> bool:
        """Whether a unit has answered; whatever keeps it from that is no error, and does not hold this process."""
        unit = self._units[index]
        with contextlib.suppress(OSError, RuntimeError):
            look = functools.partial(call, unit)
            return bool(unit.attempt(self._entering(index), look, timeout_s, call_s=_TRY_S))
        return False

    def _wait(self, look: Callable[[], Any], what: str) -> Any:
        end = time.monotonic() + self._patience
        while not (result := look()):
            if time.monotonic() >= end:
                raise TimeoutError(f"no {what} for {self._patience} s: start it again, with its folder")
        return result


class _Unit(Caller):
    """The client of one unit."""

    def __init__(self, address: str, **fields):
        super().__init__(address, **fields)
        self._entered, self._seen = None, ("", 0)

    def attempt(
        self,
        entering: dict[str, Any],
        call: Callable[[flight.FlightCallOptions], Any],
        timeout_s: float,
        call_s: float | None = None,
    ) -> Any:
        """The first true result of a call, or None when the time is over or the unit away."""

        def look(options):
            if self._entered != entering:
                self.ask("enter", options, **entering)
                self._entered = entering
            return call(options)

        return self._wait(look, timeout_s, call_s)

    def ask(self, action: str, options: flight.FlightCallOptions, **words: Any) -> Any:
        """The answer to an action."""
        return self._ask(action, options, **words)

    def put(self, content, options: flight.FlightCallOptions) -> bool:
        """False if the unit is full."""
        return self._stored(b"rows", {"rows": content}, options)

    def get(self, words: dict[str, Any], options: flight.FlightCallOptions) -> dict[int, dict[str, Any]]:
        """Rows. Raises LookupError if one is not there."""
        try:
            reader = self._client.do_get(flight.Ticket(json.dumps(words).encode()), options)
            return from_bytes(streams.read(reader)[1]["rows"], self.address)
        except pyarrow.ArrowKeyError as error:
            said = str(error.args[0]).partition(". Detail")[0].strip('"')
            raise LookupError(
                f"{self.address}: {said}: it was forgotten, or the unit has lost its folder; bring that back, or start "
                "all sides in new folders"
            ) from error

    def news(self, options: flight.FlightCallOptions) -> dict[str, Any]:
        """What has changed since the last answer."""
        session, after = self._seen
        found = self.ask("news", options, session=session, after=after)
        self._seen = (found["session"], found["last"])
        return found


def _forget(unit: _Unit, options: flight.FlightCallOptions, numbers: Sequence[int]) -> Any:
    return [unit.ask("forget", options, numbers=numbers)]


def _end(unit: _Unit, options: flight.FlightCallOptions, complete: bool) -> Any:
    return [unit.ask("end", options, complete=complete)]


def _chunks(numbers: Iterable[int]) -> Iterator[list[int]]:
    numbers = list(numbers)
    for start in range(0, len(numbers), MOST):
        yield numbers[start : start + MOST]


def _cut(rows: Mapping[int, Mapping[str, Any]]) -> Iterator[dict[int, Mapping[str, Any]]]:
    """The rows of one put after another: at most MOST of them, of MOST_BYTES together."""
    found, total = {}, 0
    for number, values in rows.items():
        size = sum(map(_size, values.values()))
        if found and (len(found) >= MOST or total + size > MOST_BYTES):
            yield found
            found, total = {}, 0
        found[number], total = values, total + size
    if found:
        yield found


def _size(value: Any) -> int:
    """Bytes of a value in a table, about: an array has its dtype and its shape beside, a string its end."""
    if isinstance(value, np.ndarray):
        return value.nbytes + 16 + 8 * value.ndim
    return 8 + (len(value.encode()) if isinstance(value, str) else 0)
