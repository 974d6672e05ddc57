"""The rows of a storage unit on its disk, by number and column (`storage`). One process has the folder. No jax.

    rows/000000000041.arrow   put 41: rows with the same columns; deleted when all of them are forgotten
    gone.json                 numbers that are finished with
    unit.json                 which unit it is, and of which run

A column of a row is written once; the same again changes nothing, so that whoever is not sure puts again, and another
value is refused. Every file is there as a whole or not at all, and before a put is answered: a unit that was killed
opens its folder and is the same unit.
"""

import json
import os
import pathlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow

from rl_jax.flow import files
from rl_jax.flow.ledger import Done
from rl_jax.flow.rows import from_table, to_table
from rl_jax.runs import disk

MAX_ROWS = 1 << 20
NUMBER = "number"  # the column of a table that has the rows' numbers


def to_bytes(rows: Mapping[int, Mapping[str, Any]]) -> np.ndarray:
    """Rows with the same columns as an Arrow file, uint8 [bytes]. Raises ValueError as rows.to_table does."""
    table = to_table([{NUMBER: number, **values} for number, values in rows.items()])
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return np.frombuffer(sink.getvalue(), np.uint8)


def from_bytes(content: np.ndarray | bytes, where: Any) -> dict[int, dict[str, Any]]:
    """The rows of `to_bytes`. Raises ValueError if they are damaged, naming `where`."""
    try:
        rows = _rows_of(pyarrow.ipc.open_file(pyarrow.py_buffer(content)).read_all(), where)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{where}: truncated or no rows ({error!s:.200})") from error
    if any(type(row.get(NUMBER)) is not int or row[NUMBER] < 0 for row in rows):
        raise ValueError(f"{where}: truncated or no rows (a row without a number)")
    return {row.pop(NUMBER): row for row in rows}


class Shelf:
    """The rows of a unit in a folder. Opened from the files alone, after whatever death.

    Args:
      folder: made if it does not exist; this unit's own.
      index: i, of this unit.
      count: N.
      max_rows: rows at once; a put above is not stored.

    Raises:
      ValueError: if the folder is another unit's, or a file is damaged.
      rl_jax.runs.disk.InUseError: if another process has the folder.
    """

    def __init__(self, folder: str | os.PathLike, *, index: int = 0, count: int = 1, max_rows: int = MAX_ROWS):
        self.folder, self._index, self._count = pathlib.Path(folder).absolute(), index, count
        disk.lock(self.folder)
        self._max_rows, self._session = max_rows, secrets.token_hex(8)
        (self.folder / "rows").mkdir(exist_ok=True)
        for part in (".", "rows"):
            files.remove_partial(self.folder / part)
        self._owner = files.read_json(self.folder / "unit.json", default={"index": index, "count": count, "run": ""})
        if (self._owner["index"], self._owner["count"]) != (index, count):
            raise ValueError(
                f"{self.folder} is of storage unit {self._owner['index']} of {self._owner['count']}, not of {index} of "
                f"{count}: rows are spread by their numbers, so a run keeps its units: give another folder"
            )
        files.write(self.folder / "unit.json", json.dumps(self._owner), durable=True)
        self._gone = Done(**files.read_json(self.folder / "gone.json", default={"below": 0, "others": []}))
        self._where: dict[int, dict[str, int]] = {}  # number -> column -> its put
        self._left: dict[int, set[int]] = {}  # put -> rows of it that are not forgotten
        self._events: list[tuple[int, int, list[str] | None]] = []  # event, row, columns that came; None: it went
        self._next, self._event, self._trimmed = 0, 0, 0
        for path in sorted((self.folder / "rows").glob("*.arrow")):
            self._open(path)

    def _open(self, path: pathlib.Path) -> None:
        put, (table, places) = int(path.stem), self._table(path)
        columns = [name for name in table.column_names if name != NUMBER]
        kept = {number: columns for number in places if number // self._count not in self._gone}
        self._next = put + 1
        self._enter(put, kept) if kept else files.remove(path)

    def _table(self, path: pathlib.Path) -> tuple[pyarrow.Table, dict[int, int]]:
        """(a file's rows, the place of each number in them). No other column is read until it is asked for."""
        try:
            table = pyarrow.ipc.open_file(pyarrow.memory_map(str(path))).read_all()
            numbers = table.column(NUMBER).to_pylist()
            if any(type(number) is not int or number < 0 for number in numbers):
                raise ValueError("a row without a number")
            return table, {number: place for place, number in enumerate(numbers)}
        except (pyarrow.ArrowException, OSError, KeyError, ValueError) as error:
            raise ValueError(f"{path}: truncated or no rows ({error!s:.200})") from error

    def _enter(self, put: int, rows: Mapping[int, Iterable[str]]) -> None:
        self._left[put] = set(rows)
        for number, columns in rows.items():
            self._where.setdefault(number, {}).update(dict.fromkeys(columns, put))
            self._tell(number, list(columns))

    def _tell(self, number: int, columns: list[str] | None) -> None:
        self._event += 1
        self._events.append((self._event, number, columns))

    def enter(self, index: int, count: int, run: str) -> None:
        """Checks who comes. The first one says which run it is of.

        Raises:
          ValueError: if it wants another unit, or is of another run.
        """
        wanted = {"index": index, "count": count, "run": run}
        known = {**self._owner, "run": self._owner["run"] or run}
        if wrong := [name for name in wanted if wanted[name] != known[name]]:
            raise ValueError(
                f"this storage unit has {wrong[0]}={known[wrong[0]]!s:.16}, and {wanted[wrong[0]]!s:.16} is asked for: "
                "give all sides the same units in the same order, and units with empty folders to a run with another "
                "config"
            )
        if self._owner != known:
            files.write(self.folder / "unit.json", json.dumps(known), durable=True)
            self._owner = known

    def put(self, rows: Mapping[int, Mapping[str, Any]]) -> bool:
        """Stores columns of rows; False if the unit is full. What is there, or was forgotten, is left as it is.

        Raises:
          ValueError: if a row is another unit's, or a column of it is there with another value.
        """
        if wrong := [number for number in rows if number % self._count != self._index]:
            raise ValueError(f"row {wrong[0]} is not one of unit {self._index} of {self._count}")
        rows = {number: values for number, values in rows.items() if number // self._count not in self._gone}
        known = {number: values.keys() & self._where.get(number, {}).keys() for number, values in rows.items()}
        for number, values in self._read(known).items():
            for column, value in values.items():
                if not _same(value, rows[number][column]):
                    raise ValueError(
                        f"column {column!r} of row {number} is there with another value: it is written once, and a "
                        "process that comes back must make the same rows"
                    )
        new: dict[tuple[str, ...], dict[int, dict[str, Any]]] = {}
        for number, values in rows.items():
            there = self._where.get(number, {})
            if fresh := {column: value for column, value in values.items() if column not in there}:
                new.setdefault(tuple(sorted(fresh)), {})[number] = fresh
        if len(self._where) + len({n for part in new.values() for n in part} - self._where.keys()) > self._max_rows:
            return False
        for part in new.values():
            content, path = to_bytes(part).tobytes(), self.folder / "rows" / f"{self._next:012}.arrow"
            files.write(path, content, durable=True)
            self._enter(self._next, part)
            self._next += 1
        return True

    def get(self, numbers: Sequence[int], columns: Sequence[str]) -> dict[int, dict[str, Any]]:
        """These columns of these rows. Raises KeyError if one is not there."""
        for number in numbers:
            there = self._where.get(number, {})
            if missing := [column for column in columns if column not in there]:
                raise KeyError(f"storage unit {self._index} has no column {missing[0]!r} of row {number}")
        return self._read({number: columns for number in numbers})

    def _read(self, wanted: Mapping[int, Iterable[str]]) -> dict[int, dict[str, Any]]:
        """Columns of rows, which are there. Each file is opened once, and no more is read of it than that."""
        puts: dict[int, dict[tuple[str, ...], list[int]]] = {}  # put -> columns -> rows
        for number, columns in wanted.items():
            own: dict[int, list[str]] = {}
            for column in columns:
                own.setdefault(self._where[number][column], []).append(column)
            for put, names in own.items():
                puts.setdefault(put, {}).setdefault(tuple(sorted(names)), []).append(number)
        found: dict[int, dict[str, Any]] = {number: {} for number in wanted}
        for put, parts in puts.items():
            path = self.folder / "rows" / f"{put:012}.arrow"
            table, places = self._table(path)
            for names, numbers in parts.items():
                part = table.select(names).take([places[number] for number in numbers])
                for number, row in zip(numbers, _rows_of(part, path), strict=True):
                    found[number] |= row
        return found

    def forget(self, numbers: Sequence[int]) -> None:
        """Removes rows, also those that never came."""
        self._gone.add(number // self._count for number in numbers)
        words = {"below": self._gone.below, "others": sorted(self._gone.others)}
        files.write(self.folder / "gone.json", json.dumps(words), durable=True)
        for number in numbers:
            for put in set(self._where.pop(number, {}).values()):
                self._left[put].discard(number)
                if not self._left[put]:
                    del self._left[put]
                    files.remove(self.folder / "rows" / f"{put:012}.arrow")
            self._tell(number, None)

    def news(self, session: str, after: int) -> dict[str, Any]:
        """What has come and gone since event `after` of this session; all that is there if that is not known."""
        whole = session != self._session or not self._trimmed <= after <= self._event
        there: dict[int, list[str]] = {}
        gone = []
        if whole:
            there = {number: list(columns) for number, columns in self._where.items()}
        else:
            self._events, self._trimmed = [event for event in self._events if event[0] > after], after
            for _, number, columns in self._events:
                if columns is None:
                    there.pop(number, None), gone.append(number)
                else:
                    there.setdefault(number, []).extend(columns)
        rows = [[number, columns] for number, columns in there.items()]
        return {"session": self._session, "last": self._event, "whole": whole, "there": rows, "gone": gone}

    def close(self) -> None:
        """Gives the folder back."""
        disk.unlock(self.folder)


def _rows_of(table: pyarrow.Table, where: Any) -> list[dict[str, Any]]:
    """The rows of a valid table. Raises ValueError if it is damaged, naming `where`."""
    try:
        table.validate(full=True)
        return from_table(table)
    except (pyarrow.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{where}: truncated or no rows ({error!s:.200})") from error


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal to the bit."""
    if isinstance(one, np.ndarray):
        is_like = isinstance(other, np.ndarray) and (one.dtype, one.shape) == (other.dtype, other.shape)
        return is_like and one.tobytes() == other.tobytes()
    return type(one) is type(other) and repr(one) == repr(other)
