"""Sources that weigh each prompt by what became of it: its measured success, or the spread of its rewards."""

from collections.abc import Callable

import numpy as np

from rl_jax.experience.prompt import Feedback, PromptTable
from rl_jax.experience.sources.base import Source, draw


class Counted(Source):
    """A Source that counts the successes and failures of each prompt, or of each kind of prompts.

    Args:
      table: the prompts.
      seed: of the draws.
      column: prompts with the same value of it are one kind and share their counts. "": each is its own kind.
      prior: added to both counts in the estimate; above 0.
      decay: factor of a prompt's old counts at each visit, from 0 to 1; 1 forgets nothing.
    """

    kept = ("successes", "failures", "visits")

    def __init__(self, table: PromptTable, seed: int, *, column: str = "", prior: float = 0.5, decay: float = 1.0):
        super().__init__(table, seed)
        if not prior > 0 or not 0 <= decay <= 1:
            raise ValueError(f"prior must be above 0 and decay from 0 to 1, got prior={prior}, decay={decay}")
        self._prior, self._decay = prior, decay
        self.kinds, self._kind = list(range(len(table))), np.arange(len(table))
        if column:
            names, self._kind = np.unique([str(value) for value in table.column(column)], return_inverse=True)
            self.kinds = names.tolist()
        count = len(self.kinds)
        self._sizes = np.bincount(self._kind, minlength=count)
        self.successes, self.failures = np.zeros(count), np.zeros(count)
        self.visits = np.zeros(count, np.int64)

    def estimate(self) -> np.ndarray:
        """Each kind's success, float64 [K]: (s + prior) / (s + f + 2 prior), .5 for a kind that was not seen."""
        return (self.successes + self._prior) / (self.successes + self.failures + 2 * self._prior)

    def feedback(self, seen: Feedback) -> None:
        """Adds the step's successes; groups of one kind are summed and forget once."""
        kinds, passed, number = self._kind[seen.indices], np.zeros(len(self.kinds)), np.zeros(len(self.kinds))
        np.add.at(passed, kinds, np.sum(seen.success, axis=1, dtype=np.float64))
        np.add.at(number, kinds, float(seen.success.shape[1]))
        np.add.at(self.visits, kinds, 1)
        kept = np.where(number > 0, self._decay, 1.0)
        self.successes = kept * self.successes + passed
        self.failures = kept * self.failures + number - passed

    def metrics(self) -> dict[str, float]:
        """The share of kinds that were seen, and their mean estimate."""
        visited = self.visits > 0
        mean = {"estimate": float(np.mean(self.estimate()[visited]))} if visited.any() else {}
        return {"visited": float(np.mean(visited)), **mean}


class _Weighted(Counted):
    def __init__(self, table: PromptTable, seed: int, weigh: Callable, **counts):
        super().__init__(table, seed, **counts)
        self._weigh = weigh

    def weights(self) -> np.ndarray:
        return (self._weigh(self.estimate()) / self._sizes)[self._kind]

    def take(self, count: int) -> np.ndarray:
        return draw(self.random(), self.weights(), count)


def by_success(
    table: PromptTable,
    *,
    seed: int = 0,
    power: float = 1.0,
    floor: float = 0.0,
    column: str = "",
    prior: float = 0.5,
    decay: float = 1.0,
) -> Source:
    """Prompts that succeed half of the time come most often: w = (4 p (1 - p))^power + floor.

    w is 1 + floor at p = .5 and floor at p = 0 and 1. With group rewards in {0, 1}, 4 p (1 - p) is proportional to the
    expected sum of squared advantages. power=.5 and floor=.1 are SPO's weights sqrt(p (1 - p)) + .05, arXiv 2509.13232.

    Args:
      table: the prompts.
      seed: of the draws.
      power: above 0; how sharp the peak is.
      floor: 0 or more.
      column: of the kinds that are weighed, see `Counted`; prompts of a kind are equally likely.
      prior: see `Counted`.
      decay: see `Counted`.
    """
    if not power > 0 or floor < 0:
        raise ValueError(f"power must be above 0 and floor 0 or more, got power={power}, floor={floor}")

    def weigh(p: np.ndarray) -> np.ndarray:
        return (4 * p * (1 - p)) ** power + floor

    return _Weighted(table, seed, weigh, column=column, prior=prior, decay=decay)


def softmax(
    table: PromptTable,
    *,
    seed: int = 0,
    temperature: float = 0.1,
    target: float = 0.5,
    column: str = "",
    prior: float = 0.5,
    decay: float = 0.5,
) -> Source:
    """Prompts below the target come more often: w = exp((target - p) / temperature).

    w is 1 at p = target, above 1 for harder prompts and below 1 for easier ones.
    Source: VLA-RL, arXiv 2505.18719 (target .5).

    Args:
      table: the prompts.
      seed: of the draws.
      temperature: above 0; a negative one prefers easy prompts.
      target: success of weight 1.
      column: of the kinds that are weighed, see `Counted`; prompts of a kind are equally likely.
      prior: see `Counted`.
      decay: see `Counted`.
    """
    if temperature == 0:
        raise ValueError("temperature must not be 0")

    def weigh(p: np.ndarray) -> np.ndarray:
        return np.exp((target - p) / temperature)

    return _Weighted(table, seed, weigh, column=column, prior=prior, decay=decay)


class _Thompson(Counted):
    def __init__(self, table: PromptTable, seed: int, target: float, **counts: float):
        super().__init__(table, seed, **counts)
        self._target = target

    def take(self, count: int) -> np.ndarray:
        random = self.random()
        drawn = random.beta(self.successes + self._prior, self.failures + self._prior)
        order = np.argsort(np.abs(drawn - self._target), kind="stable")
        return np.resize(order, count)


def thompson(
    table: PromptTable, *, seed: int = 0, target: float = 0.5, prior: float = 1.0, decay: float = 1.0
) -> Source:
    """Draws each prompt's success from Beta(s + prior, f + prior) and takes those nearest to the target.

    Prompts that were seen often are judged by their counts, others are explored.
    Source: Thompson (1933); as a choice of prompts by success .5 it is MoPPS' (arXiv 2507.04632).

    Args:
      table: the prompts.
      seed: of the draws.
      target: success that is wanted.
      prior: of both counts.
      decay: see `Counted`.
    """
    return _Thompson(table, seed, target, prior=prior, decay=decay)


class _Prioritised(Source):
    kept = ("priorities",)

    def __init__(self, table: PromptTable, seed: int, power: float, floor: float, measure: Callable):
        super().__init__(table, seed)
        self._power, self._floor, self._measure = power, floor, measure
        self.priorities = np.full(len(table), -1.0)  # not seen

    def weights(self) -> np.ndarray:
        seen = self.priorities[self.priorities >= 0]
        highest = seen.max() if seen.size and seen.max() > 0 else 1.0
        return (np.where(self.priorities < 0, highest, self.priorities) + self._floor) ** self._power

    def take(self, count: int) -> np.ndarray:
        return draw(self.random(), self.weights(), count)

    def feedback(self, seen: Feedback) -> None:
        self.priorities[seen.indices] = self._measure(np.asarray(seen.rewards, np.float64))


MEASURES = {
    "advantage": lambda rewards: np.mean(np.abs(rewards - rewards.mean(axis=1, keepdims=True)), axis=1),
    "variance": lambda rewards: np.var(rewards, axis=1),
}


def prioritised(
    table: PromptTable, *, seed: int = 0, by: str = "advantage", power: float = 1.0, floor: float = 0.01
) -> Source:
    """Prompts whose last group could teach most come most often: w = (priority + floor)^power.

    The priority is the mean |R - mean of the group| of the prompt's last visit, or the variance of its rewards. A
    prompt that was not seen has the highest priority so far.
    Source: prioritised replay, arXiv 1511.05952 (with the TD error in place of the advantage).

    Args:
      table: the prompts.
      seed: of the draws.
      by: "advantage" or "variance".
      power: 0 draws uniformly.
      floor: above 0, so that no prompt is lost.
    """
    if by not in MEASURES or not floor > 0:
        raise ValueError(f"by must be one of {', '.join(MEASURES)} and floor above 0, got by={by!r}, floor={floor}")
    return _Prioritised(table, seed, power, floor, MEASURES[by])
