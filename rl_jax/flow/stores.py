"""Where the values of a transfer queue's rows are (`columns`). No jax."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol


class Store(Protocol):
    """Where the values of rows are."""

    def put(self, rows: Mapping[int, Mapping[str, Any]]) -> None:
        """Stores columns: number -> column -> value."""

    def get(self, numbers: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """These columns of these rows, in their order. Raises LookupError if one is not there."""

    def forget(self, numbers: Iterable[int]) -> None:
        """Removes rows, also those that never came."""


class Values:
    """A Store in this process."""

    def __init__(self):
        self._rows: dict[int, dict[str, Any]] = {}

    def put(self, rows: Mapping[int, Mapping[str, Any]]) -> None:
        """See Store."""
        for number, values in rows.items():
            self._rows.setdefault(number, {}).update(values)

    def get(self, numbers: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """See Store."""
        return [{column: self._rows[number][column] for column in columns} for number in numbers]

    def forget(self, numbers: Iterable[int]) -> None:
        """See Store."""
        for number in numbers:
            self._rows.pop(number, None)
