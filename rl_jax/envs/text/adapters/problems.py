"""A task whose environment makes the problems: records without a prompt, told apart by a number."""

import json

from rl_jax.tasks.base import Task
from rl_jax.tokenizers import CharTokenizer

FIRST_TEST = 10**9  # numbers from here on are those of the test split
PRINTABLE = "\n" + "".join(map(chr, range(32, 127)))


class Numbers:
    """Records 0, 1, ... of a split; info has "number".

    Attributes:
      num_skipped: 0.
    """

    num_skipped = 0

    def __init__(self, first: int, count: int):
        self._first, self._count = first, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, str]:
        if not -self._count <= index < self._count:
            raise IndexError(index)
        number = self._first + index % self._count
        return {"prompt": "", "completion": "", "info": json.dumps({"number": number}), "id": str(number)}

    def __repr__(self) -> str:
        return f"Numbers({self._first}, {self._count})"


def load(*, num_train: int = 10_000, num_test: int = 200, alphabet: str = PRINTABLE, data_dir: str = "") -> Task:
    """The task; its reward is the environment's. Numbers from FIRST_TEST on are those of the test split.

    Args:
      num_train: records.
      num_test: records.
      alphabet: of the characters, for a model without a tokenizer of its own.
      data_dir: unused; other tasks are stored there.
    """
    del data_dir
    splits = {"train": Numbers(0, num_train), "test": Numbers(FIRST_TEST, num_test), "sft_train": Numbers(0, 0)}
    return Task("problems", CharTokenizer(alphabet), splits.__getitem__, None)


def number_of(record, seed: int) -> int:
    """The number of a record's problem; the seed if it has none."""
    return int(json.loads(record.get("info") or "{}").get("number", seed))
