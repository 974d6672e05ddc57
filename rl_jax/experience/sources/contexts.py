"""A source that trains in one context after the other, chosen by expected transfer (MBTL)."""

import numpy as np

from rl_jax.experience.prompt import Feedback, PromptTable
from rl_jax.experience.sources.base import Source, draw
from rl_jax.experience.transfer import next_context


class _Contexts(Source):
    kept = ("trained", "performance", "window", "current")

    def __init__(self, table: PromptTable, seed: int, column: str, steps: int, budget: int, **choice: float):
        super().__init__(table, seed)
        self._values = table.numbers(column)
        self._contexts = np.unique(self._values)
        self._steps, self._choice = steps, choice
        self._choice["length_scale"] *= float(np.ptp(self._contexts)) or 1.0
        self._budget = min(budget or len(self._contexts), len(self._contexts))
        self.trained, self.performance, self.window = [], [], []
        self.current = next_context(self._contexts, [], [], **self._choice)

    def weights(self) -> np.ndarray:
        chosen = [self.current] if self.current >= 0 else self.trained
        return np.isin(self._values, self._contexts[chosen]).astype(float)

    def take(self, count: int) -> np.ndarray:
        return draw(self.random(), self.weights(), count)

    def feedback(self, seen: Feedback) -> None:
        if self.current < 0:
            return
        self.window = [*self.window, float(np.mean(seen.success, dtype=np.float64))]
        if len(self.window) < self._steps:
            return
        late = self.window[len(self.window) // 2 :]
        self.trained = [*self.trained, self.current]
        self.performance, self.window = [*self.performance, float(np.mean(late))], []
        done = len(self.trained) >= self._budget
        self.current = -1 if done else next_context(self._contexts, self.trained, self.performance, **self._choice)

    def metrics(self) -> dict[str, float]:
        now = {"context": float(self._contexts[self.current])} if self.current >= 0 else {}
        return {"contexts": float(len(self.trained)), **now}


def by_transfer(
    table: PromptTable,
    *,
    seed: int = 0,
    column: str,
    steps: int = 20,
    budget: int = 0,
    slope: float = 0.1,
    explore: float = 1.0,
    length_scale: float = 0.3,
    noise: float = 0.1,
) -> Source:
    """Trains `steps` steps in one context, then in the one that promises most for all (rl_jax.experience.transfer).

    The performance of a context is the mean success of the second half of its steps. After `budget` contexts, prompts
    come from all that were chosen. Source: MBTL, arXiv 2408.04498, which trains one policy per context; here one policy
    goes through them.

    Args:
      table: the prompts.
      seed: of the draws.
      column: of the records' info, a number: the context.
      steps: per context.
      budget: contexts to train in; 0: all.
      slope: success lost per unit of distance between contexts.
      explore: weight of the uncertainty.
      length_scale: of the Gaussian process, as a fraction of the range of contexts (of 1 if there is one context).
      noise: standard deviation of a measured success.
    """
    if steps < 1 or budget < 0 or not length_scale > 0 or not noise > 0:
        raise ValueError(
            f"steps must be 1 or more, budget 0 or more, length_scale and noise above 0, got {steps}, {budget}, "
            f"{length_scale} and {noise}"
        )
    choice = dict(slope=slope, explore=explore, length_scale=length_scale, noise=noise)
    return _Contexts(table, seed, column, steps, budget, **choice)
