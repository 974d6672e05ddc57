"""Samples as rows whose columns fill one by one: each task takes rows as soon as the columns that it reads are there.

    queue = TransferQueue({"sampler": Task((), ("response",)), "judge": Task(("response",), ("reward",)), ...})
    queue.put("sampler", {7: {"response": ids}})            # row 7 has ended
    rows = queue.take("judge", 32, at_least=1)              # rows that judge has not had, whose response is there
    queue.put("judge", {row.number: {"reward": 1.0} for row in rows})
    queue.take("train", 64, group=8)                        # whole groups of 8 rows, with all that train reads

This is the TransferQueue of AsyncFlow (arXiv 2507.01663). What is known of a row (which columns are there, which tasks
have had it) is apart from its values, and is all that decides: a task waits for no other task, only for columns. A row
goes to each task once. Several consumers of one task ask when they are free, so that the fast one gets more.

The order is a function of what was put, not of a clock: rows come in the order in which their last missing column was
put, then by number. So the same puts and takes give the same micro-batches, also after `state` and `restore`.

Read in its authors' public code (Ascend/TransferQueue: tables of what was produced and, for each task, consumed;
samplers by rows, by whole groups, by rank) and abstract, not in the paper's text. The queue is its controller; values
are here, or in another `Store`, as in storage units on several machines (`units`), in which others put: the queue is
told (`announce`). training.balance.by_rank is its sampler that gives each data-parallel rank as many tokens. Pure: no
files, no clocks, no threads.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow

from rl_jax.flow.ledger import Done
from rl_jax.flow.rows import from_table, to_table
from rl_jax.flow.stores import Store, Values


class Task(NamedTuple):
    """What a task has to do with columns.

    Attributes:
      reads: columns that it needs; a task that only writes has none.
      writes: columns that it puts.
    """

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


class Row(NamedTuple):
    """A row as a task gets it.

    Attributes:
      number: unique in the run.
      values: of the columns that the task asked for, by column.
    """

    number: int
    values: dict[str, Any]


class TransferQueue:
    """Rows by number, and for each task which of them it has had.

    Args:
      tasks: by name.
      guards: whether a row that was forgotten is refused if it comes again. The numbers are kept up to the first one
        that never was forgotten, so forget all of them; False if someone else, as a link, sees to it.
      store: where the values are; None: here.

    Attributes:
      taken: task -> how many rows it has had so far, those that were forgotten included.

    Raises:
      ValueError: if two tasks write one column, or a task reads one that nobody writes.
    """

    def __init__(self, tasks: Mapping[str, Task], *, guards: bool = True, store: Store | None = None):
        self._tasks, self._writers, self._guards = dict(tasks), {}, guards
        for name, task in self._tasks.items():
            for column in task.writes:
                if (other := self._writers.setdefault(column, name)) != name:
                    raise ValueError(f"column {column!r} is written by {other!r} and by {name!r}: one task writes it")
        for name in self._tasks:
            self._columns(name)
        self._there: dict[int, dict[str, int]] = {}  # number -> column -> which put it was
        self._had: dict[str, set[int]] = {name: set() for name in self._tasks}
        self._has_values, self._store = store is None, Values() if store is None else store
        self._done, self._puts = Done(), 0
        self.taken = dict.fromkeys(self._tasks, 0)

    def _columns(self, task: str, columns: Iterable[str] | None = None) -> tuple[str, ...]:
        """What a task reads; None: all that it does."""
        if task not in self._tasks:
            raise ValueError(f"no task {task!r}: there are {', '.join(self._tasks)}")
        columns = self._tasks[task].reads if columns is None else tuple(columns)
        if missing := sorted(set(columns) - self._writers.keys()):
            raise ValueError(
                f"task {task!r} reads {missing[0]!r}, which nobody writes; the columns are {', '.join(self._writers)}"
            )
        return columns

    def __contains__(self, number: int) -> bool:
        return number in self._there

    @property
    def below(self) -> int:
        """All rows with a lower number were forgotten."""
        return self._done.below

    def numbers(self) -> list[int]:
        """Of the rows that are here, ascending."""
        return sorted(self._there)

    def put(self, task: str, rows: Mapping[int, Mapping[str, Any]]) -> None:
        """Adds columns of rows, new rows or known ones; all of them or, if one is wrong, none.

        Args:
          task: that writes them.
          rows: number -> column -> value.

        Raises:
          ValueError: if a column is not this task's, is there, or is of a row that was forgotten.
        """
        self._columns(task)
        for number, values in rows.items():
            for column in values:
                if self._writers.get(column) != task:
                    known = ", ".join(self._tasks[task].writes) or "none"
                    raise ValueError(f"task {task!r} put column {column!r} of row {number}: it writes {known}")
                if column in self._there.get(number, ()):
                    raise ValueError(f"column {column!r} of row {number} is there: a column is written once")
            if number in self._done:
                raise ValueError(f"row {number} was forgotten, and task {task!r} put {', '.join(values)} of it")
        self._store.put(rows)
        self._enter(rows)

    def _enter(self, rows: Mapping[int, Iterable[str]]) -> None:
        for number, columns in rows.items():
            self._there.setdefault(number, {}).update(dict.fromkeys(columns, self._puts))
        self._puts += 1

    def announce(self, rows: Mapping[int, Iterable[str]]) -> None:
        """Enters columns that others have put into the store. What is known, or of rows that were forgotten, is left.

        Args:
          rows: number -> columns.

        Raises:
          ValueError: if nobody writes a column.
        """
        for number, columns in rows.items():
            if unknown := sorted(set(columns) - self._writers.keys()):
                raise ValueError(
                    f"the store has column {unknown[0]!r} of row {number}, which nobody writes; the columns are "
                    f"{', '.join(self._writers)}"
                )
        fresh = {n: set(columns) - self._there.get(n, {}).keys() for n, columns in rows.items() if n not in self._done}
        self._enter({number: columns for number, columns in fresh.items() if columns})

    def ready(self, task: str, columns: Sequence[str] | None = None, *, group: int = 1) -> list[int]:
        """Numbers of the rows that a task can take, in the order in which it gets them.

        Args:
          task: that asks.
          columns: that it needs this time; None: all that it reads.
          group: G; above 1 rows are served by whole groups, the numbers n G to n G + G - 1.

        Raises:
          ValueError: if there is no such task, or nobody writes a column.
        """
        wanted, had, last = self._columns(task, columns), self._had[task], {}
        for number, there in self._there.items():
            if number not in had and all(column in there for column in wanted):
                last[number] = max((there[column] for column in wanted), default=0)
        found = sorted(last, key=lambda number: (last[number], number))
        if group == 1:
            return found
        wholes: dict[int, int] = {}  # group -> when its last row was ready
        for number in found:
            first = number - number % group
            if first not in wholes and all(sibling in last for sibling in range(first, first + group)):
                wholes[first] = max(last[sibling] for sibling in range(first, first + group))
        in_order = sorted(wholes, key=lambda first: (wholes[first], first))
        return [number for first in in_order for number in range(first, first + group)]

    def take(
        self,
        task: str,
        count: int,
        columns: Sequence[str] | None = None,
        *,
        at_least: int | None = None,
        group: int = 1,
        numbers: Sequence[int] | None = None,
    ) -> list[Row]:
        """Takes up to `count` rows for a task, which does not get them again; [] if fewer than `at_least` are ready.

        Args:
          task: that takes them.
          count: the most rows.
          columns: that it needs this time; None: all that it reads.
          at_least: the fewest rows; None: count.
          group: see `ready`; count is a multiple of it.
          numbers: just these rows, in this order, or [] if one of them is not ready; None: the first ones.

        Raises:
          ValueError: if there is no such task, nobody writes a column, or count does not fit.
        """
        if count < 1 or count % group or (numbers is not None and len(set(numbers)) != count):
            named = "" if numbers is None else f" and {len(set(numbers))} different numbers"
            raise ValueError(
                f"take({task!r}, {count}) with group={group}{named}: count is rows of whole groups, 1 or more"
            )
        found = self.ready(task, columns, group=group)
        if numbers is not None:
            found = list(numbers) if set(numbers) <= set(found) else []
        if len(found) < (count if at_least is None else at_least):
            return []
        found = found[:count]
        rows = list(map(Row, found, self._store.get(found, self._columns(task, columns))))
        self._had[task].update(found)
        self.taken[task] += len(found)
        return rows

    def forget(self, numbers: Iterable[int]) -> None:
        """Removes rows, as after training or if their group was thrown away; also rows that never came.

        They may not come again (`guards`).
        """
        numbers = list(numbers)
        for number in numbers:
            self._there.pop(number, None)
            for had in self._had.values():
                had.discard(number)
        self._store.forget(numbers)
        if self._guards:
            self._done.add(numbers)

    def state(self) -> tuple[dict[str, Any], dict[str, pyarrow.Table]]:
        """(JSON value, values by column): from them `restore` makes the same queue.

        Raises:
          ValueError: if a value is none that flow.rows can carry.
          RuntimeError: if the values are elsewhere, where they stay.
        """
        self._check_values()
        words = {
            "there": [[number, there] for number, there in self._there.items()],
            "had": {task: sorted(had) for task, had in self._had.items()},
            "taken": dict(self.taken),
            "puts": self._puts,
            "done": {"below": self._done.below, "others": sorted(self._done.others)},
        }
        columns = {column: [n for n in self._there if column in self._there[n]] for column in self._writers}
        tables = {
            column: to_table([{"number": n, "value": self._store.get([n], [column])[0][column]} for n in numbers])
            for column, numbers in columns.items()
            if numbers
        }
        return words, tables

    def restore(self, words: Mapping[str, Any], tables: Mapping[str, pyarrow.Table]) -> None:
        """Back to what `state` gave. Raises ValueError if it is of a queue with other tasks or columns; see `state`."""
        self._check_values()
        columns = {column for _, there in words["there"] for column in there}
        if set(words["had"]) != set(self._tasks) or not columns <= self._writers.keys():
            raise ValueError(
                f"a state of tasks {', '.join(words['had'])} and columns {', '.join(sorted(columns))}: this queue has "
                f"{', '.join(self._tasks)} and {', '.join(self._writers)}"
            )
        self._there = {number: dict(there) for number, there in words["there"]}
        self._had = {task: set(had) for task, had in words["had"].items()}
        self.taken, self._puts, self._done = dict(words["taken"]), words["puts"], Done(**words["done"])
        self._store = Values()
        for column, table in tables.items():
            self._store.put({row["number"]: {column: row["value"]} for row in from_table(table)})

    def _check_values(self) -> None:
        if not self._has_values:
            raise RuntimeError(
                "this queue has no values: they are in its store, which outlives it; announce what is there"
            )
