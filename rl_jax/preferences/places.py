"""Where a record was read, which messages about it say. Plain Python."""

from collections.abc import Mapping, Sequence
from typing import Any


class Placed(dict):
    """A record with `place`, the file and line that it was read from; "" if it comes from no file."""

    def __init__(self, values: Mapping[str, Any], place: Any = ""):
        super().__init__(values)
        self.place = place


def copied(record: Mapping, values: Mapping[str, Any]) -> Placed:
    """`values` as a record with the place of `record`."""
    return Placed(values, getattr(record, "place", ""))


def place_of(records: Sequence[Mapping], index: int) -> str:
    """The place of records[index]; its number if it has none."""
    return getattr(records[index], "place", "") or f"record {index}"
