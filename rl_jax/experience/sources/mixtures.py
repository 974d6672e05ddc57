"""Mixtures of named sources: with fixed weights, or with weights that move with what is learned from each."""

from collections.abc import Mapping

import numpy as np

from rl_jax.experience.prompt import Feedback, PromptTable
from rl_jax.experience.sources.base import Source


class Mixture(Source):
    """Shuffled epochs of each source, mixed.

    Args:
      table: the prompts.
      seed: of the draws.
      column: whose value names a prompt's source.
      weights: source -> weight, up to a factor; empty: all sources alike.
    """

    kept = ("taken",)

    def __init__(self, table: PromptTable, seed: int, column: str, weights: Mapping[str, float]):
        super().__init__(table, seed)
        values = np.asarray([str(value) for value in table.column(column)])
        known = sorted(set(values.tolist()))
        unknown = sorted(set(map(str, weights)) - set(known))
        if unknown:
            raise ValueError(
                f"sample.prompts.weights names the sources {', '.join(unknown)}, but field {column!r} of "
                f"{table.records!r} has: {', '.join(known)}"
            )
        self.names = [str(name) for name in weights] or known
        shares = np.asarray(list(weights.values()) or [1.0] * len(known), np.float64)
        if not np.all(np.isfinite(shares)) or shares.min() < 0 or shares.sum() <= 0:
            raise ValueError(f"sample.prompts.weights must be 0 or more and not all 0, got {dict(weights)}")
        self.shares = shares / shares.sum()
        self._members = [np.flatnonzero(values == name) for name in self.names]
        self._source = np.full(len(table), -1)
        for place, members in enumerate(self._members):
            self._source[members] = place
        self.taken = np.zeros(len(self.names), np.int64)
        self._seen = {}

    def probabilities(self) -> np.ndarray:
        """The share of each source in the next batch, float64 [K]."""
        return self.shares

    def weights(self) -> np.ndarray:
        per_prompt = self.probabilities() / [len(members) for members in self._members]
        return np.where(self._source < 0, 0.0, per_prompt[self._source])

    def take(self, count: int) -> np.ndarray:
        random, cumulative = self.random(), np.cumsum(self.probabilities())
        # One uniform number for all places: each source gets its share of the batch to within one prompt.
        places = (np.arange(count) + random.random()) / count * cumulative[-1]
        sources = np.minimum(np.searchsorted(cumulative, places, side="right"), len(cumulative) - 1)
        return np.asarray([self._next(source) for source in sources[random.permutation(count)]], np.int64)

    def _next(self, source: int) -> int:
        epoch, place = divmod(int(self.taken[source]), len(self._members[source]))
        self.taken[source] += 1
        order = np.random.default_rng([self.seed, 1, source, epoch]).permutation(len(self._members[source]))
        return int(self._members[source][order[place]])

    def feedback(self, seen: Feedback) -> None:
        sources = self._source[seen.indices]
        self._seen = {}
        for place, name in enumerate(self.names):
            rows = sources == place
            self._seen[f"{name}/prompts"] = float(np.count_nonzero(rows))
            if rows.any():
                self._seen[f"{name}/success"] = float(np.mean(seen.success[rows], dtype=np.float64))

    def metrics(self) -> dict[str, float]:
        shares = zip(self.names, self.probabilities(), strict=True)
        return self._seen | {f"{name}/share": float(share) for name, share in shares}


def mixture(
    table: PromptTable, *, seed: int = 0, column: str = "source", weights: Mapping[str, float] | None = None
) -> Source:
    """Sources with fixed shares of every batch, each in shuffled epochs of its own.

    Source: MoDoMoDo, arXiv 2505.24871, whose choice of weights is experiments.tools.mixture.

    Args:
      table: the prompts.
      seed: of the draws.
      column: whose value names a prompt's source: the record's `source`, or any other field of its info.
      weights: source -> weight, up to a factor; None: all alike. A source that is not named is left out.
    """
    return Mixture(table, seed, column, weights or {})


def learnability(seen: Feedback) -> np.ndarray:
    """4 p (1 - p) of each group's mean success p, float64 [n]: 1 at .5, 0 where nothing differs."""
    rate = np.mean(seen.success, axis=1, dtype=np.float64)
    return 4 * rate * (1 - rate)


class _Exp3(Mixture):
    kept = ("taken", "log_weights")

    def __init__(self, table: PromptTable, seed: int, column: str, weights: Mapping[str, float], rate: float):
        super().__init__(table, seed, column, weights)
        self._rate = rate
        with np.errstate(divide="ignore"):
            self.log_weights = np.maximum(np.log(self.shares), -50.0)

    def probabilities(self) -> np.ndarray:
        weights = np.exp(self.log_weights - self.log_weights.max())
        return (1 - self._rate) * weights / weights.sum() + self._rate / len(weights)

    def feedback(self, seen: Feedback) -> None:
        super().feedback(seen)
        sources, gains, shares = self._source[seen.indices], learnability(seen), self.probabilities()
        for place, share in enumerate(shares):
            estimate = np.sum(gains[sources == place]) / (share * len(gains))
            self.log_weights[place] += self._rate * estimate / len(shares)
        self.log_weights -= self.log_weights.max()


def exp3(
    table: PromptTable,
    *,
    seed: int = 0,
    column: str = "source",
    weights: Mapping[str, float] | None = None,
    rate: float = 0.1,
) -> Source:
    """A bandit over sources, EXP3, paid with 4 p (1 - p) for a group of success p.

        share_k = (1 - rate) w_k / sum w + rate / K,   w_k <- w_k exp(rate / K * x_k),
        x_k = (sum of the pay of its groups) / (share_k * groups of the step).

    Source: Auer et al. (2002); as a curriculum arXiv 1704.03003.

    Args:
      table: the prompts.
      seed: of the draws.
      column: whose value names a prompt's source.
      weights: source -> first weight; None: all alike.
      rate: above 0 and up to 1: the share of exploration, and the size of a step.
    """
    if not 0 < rate <= 1:
        raise ValueError(f"rate must be above 0 and up to 1, got {rate}")
    return _Exp3(table, seed, column, weights or {}, rate)


class _Progress(Mixture):
    kept = ("taken", "fast", "slow", "known")

    def __init__(self, table, seed, column, weights, *, temperature, floor, decays):
        super().__init__(table, seed, column, weights)
        self._temperature, self._floor, self._decays = temperature, floor, decays
        count = len(self.names)
        self.fast, self.slow, self.known = np.zeros(count), np.zeros(count), np.zeros(count, bool)

    def probabilities(self) -> np.ndarray:
        if not self.known.all():
            return self.shares
        scores = np.abs(self.fast - self.slow) / self._temperature
        weights = np.exp(scores - scores.max())
        return (1 - self._floor) * weights / weights.sum() + self._floor / len(weights)

    def feedback(self, seen: Feedback) -> None:
        super().feedback(seen)
        sources = self._source[seen.indices]
        for place in range(len(self.names)):
            rows = sources == place
            if not rows.any():
                continue
            success = float(np.mean(seen.success[rows], dtype=np.float64))
            for decay, name in zip(self._decays, ("fast", "slow"), strict=True):
                mean = getattr(self, name)
                mean[place] = decay * mean[place] + (1 - decay) * success if self.known[place] else success
            self.known[place] = True


def learning_progress(
    table: PromptTable,
    *,
    seed: int = 0,
    column: str = "source",
    weights: Mapping[str, float] | None = None,
    temperature: float = 0.05,
    floor: float = 0.2,
    fast: float = 0.5,
    slow: float = 0.9,
) -> Source:
    """Sources whose success moves fastest, up or down, get more: share ~ exp(|fast mean - slow mean| / temperature).

    Until all sources were seen the shares are `weights`. Source: TSCL, arXiv 1707.00183 (the slope of a window there).

    Args:
      table: the prompts.
      seed: of the draws.
      column: whose value names a prompt's source.
      weights: source -> first weight; None: all alike.
      temperature: above 0, in success.
      floor: share that is spread evenly, from 0 to 1.
      fast: decay per step of the fast mean of the success.
      slow: decay of the slow one.
    """
    if not temperature > 0 or not 0 <= floor <= 1 or not 0 <= fast <= slow < 1:
        raise ValueError(
            "temperature must be above 0, floor from 0 to 1 and 0 <= fast <= slow < 1, got "
            f"{temperature}, {floor}, {fast} and {slow}"
        )
    chosen = dict(temperature=temperature, floor=floor, decays=(fast, slow))
    return _Progress(table, seed, column, weights or {}, **chosen)
