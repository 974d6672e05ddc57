"""What a source of prompts is, and how prompts are drawn by weights."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_jax.experience.prompt import Feedback, PromptTable


class Source:
    """Chooses the prompts of each batch. Its state is a JSON value and equal in all processes.

    All randomness is a function of the seed and the number of draws so far, so that a restored source goes on exactly.
    A subclass has `take`; it names in `kept` what else its choice depends on: numbers, lists of them and arrays.

    Attributes:
      table: the prompts.
      draws: int. Calls of `take` so far.
    """

    kept: tuple[str, ...] = ()

    def __init__(self, table: PromptTable, seed: int = 0):
        if not len(table):
            raise ValueError(f"{table.records!r} has no records")
        self.table, self.seed, self.draws = table, seed, 0

    def take(self, count: int) -> np.ndarray:
        """The next `count` prompts, int64 [count]."""
        raise NotImplementedError

    def feedback(self, seen: Feedback) -> None:
        """Learns what became of a step's prompts."""

    def weights(self) -> np.ndarray | None:
        """float64 [N], how likely each prompt is in the next draw, up to a factor; None if there are no weights."""
        return None

    def metrics(self) -> dict[str, float]:
        """Numbers of its own, by name."""
        return {}

    def random(self) -> np.random.Generator:
        """The generator of the next draw; counts the draw."""
        self.draws += 1
        return np.random.default_rng([self.seed, self.draws])

    def state(self) -> dict[str, Any]:
        """A JSON value: draws and what `kept` names."""
        values = {name: getattr(self, name) for name in ("draws", *self.kept)}
        return {name: x.tolist() if isinstance(x, np.ndarray) else _copy(x) for name, x in values.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state` returned.

        Raises:
          ValueError: if the state is of another kind of source, or of another number of prompts.
        """
        names = ("draws", *self.kept)
        if set(state) != set(names):
            raise ValueError(
                f"the checkpoint's prompts have a state of {sorted(state)}, but this source has {sorted(names)}: "
                "resume with the sample.prompts of the run, or start in a new workdir"
            )
        for name in names:
            old, new = getattr(self, name), _copy(state[name])
            if isinstance(old, np.ndarray):
                new = np.asarray(new, old.dtype)
                if new.shape != old.shape:
                    raise ValueError(
                        f"the checkpoint's {name} is of {new.shape} prompts, but there are {old.shape}: the task's "
                        "records have changed; start in a new workdir"
                    )
            setattr(self, name, new)


def _copy(value):
    """A JSON value that shares nothing with `value`."""
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list | tuple) else value


def draw(random: np.random.Generator, weights: np.ndarray, count: int) -> np.ndarray:
    """Draws prompts one after the other in proportion to their weights, each at most once per draw.

    The `count` largest of log w - log(-log u) for uniform u are such a draw (Efraimidis and Spirakis, 2006). If fewer
    than `count` weights are above 0, the draw is with replacement.

    Args:
      random: of the draw.
      weights: float [N], 0 or more, up to a factor.
      count: of prompts.

    Returns:
      int64 [count].

    Raises:
      ValueError: if a weight is negative or not finite, or all are 0.
    """
    weights = np.asarray(weights, np.float64)
    if not np.all(np.isfinite(weights)) or weights.min() < 0 or weights.max() <= 0:
        raise ValueError("the weights of prompts must be finite, 0 or more, and above 0 for some prompt")
    if np.count_nonzero(weights) < count:
        shares = np.cumsum(weights)
        return np.minimum(np.searchsorted(shares, random.random(count) * shares[-1], side="right"), len(weights) - 1)
    with np.errstate(divide="ignore"):
        keys = np.log(weights) - np.log(-np.log(random.random(len(weights))))
    return np.argsort(-keys, kind="stable")[:count]


def effective(weights: np.ndarray) -> float:
    """The effective number of prompts, (sum w)^2 / sum w^2: N for equal weights, 1 if one has all the weight."""
    weights = weights / np.max(weights)
    return float(np.square(np.sum(weights)) / np.sum(np.square(weights)))
