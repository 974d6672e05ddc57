"""Where a record was read, which messages about it say. Plain Python."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rl_jax.tokenizers.characters import NOT_WRITTEN


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


@contextlib.contextmanager
def naming_place(records: Sequence[Mapping], index: int) -> Iterator[None]:
    """Inside, the error of a character that the tokenizer does not have names the place of records[index]."""
    try:
        yield
    except ValueError as error:
        if NOT_WRITTEN not in str(error):
            raise
        raise ValueError(f"{place_of(records, index)}: {error}") from error
