"""Sources that go from easy to hard: by a schedule, by reaching a threshold, or from all prompts to the hard ones."""

import numpy as np

from rl_jax.experience.prompt import Feedback, PromptTable
from rl_jax.experience.sources.base import Source, draw
from rl_jax.experience.sources.success import Counted


class _Staged(Counted):
    def __init__(self, table: PromptTable, seed: int, column: str, steps: int, start: float):
        super().__init__(table, seed)
        self._difficulty = table.numbers(column) if column else None
        self._steps, self._start = steps, start

    def weights(self) -> np.ndarray:
        share = min(1.0, self._start + (1 - self._start) * self.draws / max(self._steps, 1))
        count = max(1, int(np.ceil(share * len(self.table))))
        difficulty = -self.estimate() if self._difficulty is None else self._difficulty
        allowed = np.zeros(len(self.table))
        allowed[np.argsort(difficulty, kind="stable")[:count]] = 1.0
        return allowed

    def take(self, count: int) -> np.ndarray:
        weights = self.weights()  # before `random` counts the draw
        return draw(self.random(), weights, count)


def staged(table: PromptTable, *, seed: int = 0, column: str = "", steps: int = 100, start: float = 0.2) -> Source:
    """The easiest share of the prompts, drawn uniformly; the share grows linearly from `start` to 1 over the steps.

    start=1 is uniform from the first step. Source: linear pacing of curricula, arXiv 1904.03626.

    Args:
      table: the prompts.
      seed: of the draws.
      column: of the records' info, a number that grows with difficulty. "": the measured success, easiest first;
        prompts that were not seen count as .5.
      steps: draws until all prompts are allowed.
      start: share of the prompts at first, above 0 and up to 1.
    """
    if not 0 < start <= 1 or steps < 0:
        raise ValueError(f"start must be above 0 and up to 1, steps 0 or more, got start={start}, steps={steps}")
    return _Staged(table, seed, column, steps, start)


class _Promoted(Source):
    kept = ("level", "window")

    def __init__(self, table: PromptTable, seed: int, column: str, threshold: float, patience: int, review: float):
        super().__init__(table, seed)
        self._values = table.numbers(column)
        self._levels = np.unique(self._values)
        self._threshold, self._patience, self._review = threshold, patience, review
        self.level, self.window = 0, []

    def weights(self) -> np.ndarray:
        now, below = self._values == self._levels[self.level], self._values < self._levels[self.level]
        weights = now / np.count_nonzero(now)
        if self._review and below.any():
            weights = (1 - self._review) * weights + self._review * below / np.count_nonzero(below)
        return weights

    def take(self, count: int) -> np.ndarray:
        return draw(self.random(), self.weights(), count)

    def feedback(self, seen: Feedback) -> None:
        rows = self._values[seen.indices] == self._levels[self.level]
        if not rows.any():
            return
        self.window = [*self.window, float(np.mean(seen.success[rows], dtype=np.float64))][-self._patience :]
        full = len(self.window) == self._patience
        if full and np.mean(self.window) >= self._threshold and self.level + 1 < len(self._levels):
            self.level, self.window = self.level + 1, []

    def metrics(self) -> dict[str, float]:
        return {"level": float(self.level), "difficulty": float(self._levels[self.level])}


def promoted(
    table: PromptTable,
    *,
    seed: int = 0,
    column: str = "difficulty",
    threshold: float = 0.75,
    patience: int = 4,
    review: float = 0.0,
) -> Source:
    """Prompts of one level of difficulty; the next level once the success of the last steps reaches a threshold.

    Source: SATURN, arXiv 2505.16368, which measures pass@k on validation prompts of the level; here it is the success
    of the samples that are trained on.

    Args:
      table: the prompts.
      seed: of the draws.
      column: of the records' info, a number; its distinct values are the levels.
      threshold: of the mean success, from 0 to 1; 0 promotes whenever the window is full, above 1 never.
      patience: steps whose mean counts.
      review: share of earlier levels in a batch, from 0 to 1.
    """
    if patience < 1 or not 0 <= review <= 1:
        raise ValueError(f"patience must be 1 or more and review from 0 to 1, got {patience} and {review}")
    return _Promoted(table, seed, column, threshold, patience, review)


class _HardLater(Counted):
    def __init__(self, table: PromptTable, seed: int, steps: int, below: float, above: float, **counts: float):
        super().__init__(table, seed, **counts)
        self._steps, self._below, self._above = steps, below, above

    def weights(self) -> np.ndarray:
        if self.draws < self._steps:
            return np.ones(len(self.table))
        rate = self.successes / np.maximum(self.successes + self.failures, 1.0)
        hard = (self.visits > 0) & (rate < self._below) & (rate >= self._above)
        hard |= self.visits == 0
        return hard.astype(float) if hard.any() else np.ones(len(self.table))

    def take(self, count: int) -> np.ndarray:
        weights = self.weights()
        return draw(self.random(), weights, count)


def hard_later(
    table: PromptTable,
    *,
    seed: int = 0,
    steps: int = 100,
    below: float = 0.5,
    above: float = 0.0,
    decay: float = 1.0,
) -> Source:
    """Two stages: all prompts, uniformly; after `steps` draws only those whose success so far is in [above, below).

    Prompts that were not seen stay in. If no prompt is left, all are drawn again.
    Source: the second stage of Fleming-R1, arXiv 2509.15279; its thresholds are not known, these are ours.

    Args:
      table: the prompts.
      seed: of the draws.
      steps: draws of the first stage.
      below: highest success of a hard prompt, exclusive.
      above: lowest success; 0 keeps prompts that never succeeded.
      decay: see `Counted`.
    """
    return _HardLater(table, seed, steps, below, above, decay=decay)


class _OneLevelAfterAnother(Source):
    def __init__(self, table: PromptTable, seed: int, column: str, steps: int):
        super().__init__(table, seed)
        self._values, self._steps = table.numbers(column), steps
        self._levels = np.unique(self._values)

    def weights(self) -> np.ndarray:
        level = min(self.draws // self._steps, len(self._levels) - 1)
        return (self._values == self._levels[level]).astype(float)

    def take(self, count: int) -> np.ndarray:
        weights = self.weights()  # before `random` counts the draw
        return draw(self.random(), weights, count)


def one_level_after_another(table: PromptTable, *, seed: int = 0, column: str, steps: int) -> Source:
    """All draws of the easiest level, then all of the next one, up to the hardest; none comes back.

        level of draw d, from 0:   min(floor(d / steps), levels - 1),   uniform within it

    Source: the easy-to-hard warm-up of iTool, arXiv 2501.09766, as its first abstract names it; from memory, not read:
    subsets by the number of candidate tools, the length of their texts and the number of calls, one after the other.

    Args:
      table: the prompts.
      seed: of the draws.
      column: of the records' info, a number; its distinct values are the levels, the smallest first.
      steps: draws of each level.

    Raises:
      ValueError: if steps is below 1.
    """
    if steps < 1:
        raise ValueError(f"steps={steps} of each level must be 1 or more")
    return _OneLevelAfterAnother(table, seed, column, steps)
