"""Sums, and demonstrations of how one is asked in another way, for a policy that rewrites its own problems (CLPO).

    3+5-2+7=     ->  8=6=13       as in arithmetic
    ,3+5-2+7=    ->  8-2+7=       an easier one
    :3+5-2+7=    ->  7-2+3+5=     the same one in another order

A model of characters cannot follow an instruction that it was never shown, so the warm start shows both. A pretrained
model is asked in words: foreign.restructured.instructions. Source: arXiv 2509.25004.
"""

import random
from collections.abc import Mapping

from rl_jax import tasks
from rl_jax.selection import rewriting
from rl_jax.tasks.axes import ALPHABET
from rl_jax.tasks.base import RecordSource, Task
from rl_jax.tokenizers import CharTokenizer

INSTRUCTIONS = (",{prompt}", ":{prompt}")  # for hard problems, for medium ones
WRITERS = (rewriting.simplify, rewriting.diversify)


def load(*, of: Mapping) -> Task:
    """The task arithmetic, with three demonstrations for each of its problems. of: its keywords."""
    task = tasks.load(**of)

    def data_source(split: str):
        source = task.data_source(split)
        return Shown(source) if split == "sft_train" else source

    return task._replace(name="restructured", tokenizer=CharTokenizer(ALPHABET), data_source=data_source)


class Shown(RecordSource):
    """Each problem of a source with its solution, then rewritten in both ways."""

    def __init__(self, source):
        super().__init__(source, name="restructured", split=source.split, report=source.report)

    def __len__(self) -> int:
        return (1 + len(WRITERS)) * len(self._data)

    def __getitem__(self, index: int) -> dict[str, str]:
        problem, place = divmod(index, 1 + len(WRITERS))
        record = self._data[problem]
        if not place:
            return record
        said = WRITERS[place - 1](record["prompt"], random.Random(problem))
        return record | {"prompt": INSTRUCTIONS[place - 1].format(prompt=record["prompt"]), "completion": said}
