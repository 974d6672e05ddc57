"""Sources without feedback: in order, shuffled epochs, uniform draws."""

import functools

import numpy as np

from rl_jax.experience.prompt import PromptTable
from rl_jax.experience.sources.base import Source


class _Shuffled(Source):
    kept = ("taken",)

    def __init__(self, table: PromptTable, seed: int):
        super().__init__(table, seed)
        self.taken = 0

    @functools.cached_property
    def _order(self):
        import grain  # it imports jax, so it is imported only when prompts are read

        return grain.MapDataset.source(range(len(self.table))).shuffle(seed=self.seed).repeat()

    def take(self, count: int) -> np.ndarray:
        chosen = [int(self._order[place]) for place in range(self.taken, self.taken + count)]
        self.draws, self.taken = self.draws + 1, self.taken + count
        return np.asarray(chosen, np.int64)


def shuffled(table: PromptTable, *, seed: int = 0) -> Source:
    """Every epoch is a new permutation, the order of data.train_iterator; a batch may span two epochs."""
    return _Shuffled(table, seed)


class _Ordered(Source):
    kept = ("taken",)
    taken = 0

    def take(self, count: int) -> np.ndarray:
        chosen = np.arange(self.taken, self.taken + count) % len(self.table)
        self.draws, self.taken = self.draws + 1, self.taken + count
        return chosen


def ordered(table: PromptTable) -> Source:
    """The records in their order, again and again."""
    return _Ordered(table)


class _Uniform(Source):
    def take(self, count: int) -> np.ndarray:
        return self.random().integers(len(self.table), size=count)


def uniform(table: PromptTable, *, seed: int = 0) -> Source:
    """Every prompt of a batch is drawn from all prompts, with replacement."""
    return _Uniform(table, seed)
