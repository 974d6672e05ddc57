"""A source that predicts each prompt's success from its text and columns, and takes those near a target (PCL)."""

import zlib

import numpy as np

from rl_jax.experience.prompt import Feedback, PromptTable
from rl_jax.experience.sources.base import Source, draw

NGRAMS = (1, 2, 3)


def text_features(text: str, size: int) -> np.ndarray:
    """Counts of the text's 1- to 3-grams, hashed with signs to `size` numbers of length 1 in all, float64 [size]."""
    counts = np.zeros(size)
    for width in NGRAMS if size else ():
        for start in range(len(text) - width + 1):
            code = zlib.crc32(text[start : start + width].encode())
            counts[(code >> 1) % size] += 1.0 if code & 1 else -1.0
    return counts / max(float(np.linalg.norm(counts)), 1e-12)


class _Learned(Source):
    kept = ("gram", "moment")

    def __init__(self, table: PromptTable, seed: int, columns: tuple[str, ...], **settings: float):
        super().__init__(table, seed)
        self._settings, self._error = settings, None
        numbers = [table.numbers(name) for name in columns]
        spread = [max(float(np.std(x)), 1e-12) for x in numbers]
        self._columns = [(x - np.mean(x)) / std for x, std in zip(numbers, spread, strict=True)]
        size = settings["features"] + len(columns) + 1
        self.gram, self.moment = np.zeros((size, size)), np.zeros(size)

    def _inputs(self, indices: np.ndarray) -> np.ndarray:
        size = self._settings["features"]
        texts = [text_features(self.table.text(index), size) for index in indices]
        rest = [[*(x[index] for x in self._columns), 1.0] for index in indices]
        return np.concatenate([np.reshape(texts, (len(indices), size)), np.asarray(rest)], axis=1)

    def values(self, indices: np.ndarray) -> np.ndarray:
        """The predicted success of these prompts, float64 [n], within [0, 1]; the target before anything was seen."""
        ridge = self._settings["ridge"] * np.eye(len(self.moment))
        start = np.zeros(len(self.moment))
        start[-1] = self._settings["target"]
        solution = np.linalg.solve(self.gram + ridge, self.moment + ridge @ start)
        return np.clip(self._inputs(indices) @ solution, 0.0, 1.0)

    def take(self, count: int) -> np.ndarray:
        wanted = min(count * self._settings["candidates"], max(len(self.table), count))
        candidates = draw(self.random(), np.ones(len(self.table)), wanted)
        far = np.abs(self.values(candidates) - self._settings["target"])
        return candidates[np.argsort(far, kind="stable")[:count]]

    def feedback(self, seen: Feedback) -> None:
        success, inputs = np.mean(seen.success, axis=1, dtype=np.float64), self._inputs(seen.indices)
        self._error = float(np.mean(np.abs(self.values(seen.indices) - success)))
        decay = self._settings["decay"]
        self.gram = decay * self.gram + inputs.T @ inputs
        self.moment = decay * self.moment + inputs.T @ success

    def metrics(self) -> dict[str, float]:
        return {} if self._error is None else {"value_error": self._error}


def learned_value(
    table: PromptTable,
    *,
    seed: int = 0,
    target: float = 0.5,
    candidates: int = 4,
    columns: tuple[str, ...] = (),
    features: int = 64,
    ridge: float = 1.0,
    decay: float = 0.99,
) -> Source:
    """Draws `candidates` prompts for each one needed and takes those whose predicted success V is nearest to target.

    V is fitted to the mean success of each group that was trained on, and generalises to prompts that were not seen. A
    ridge regression on n-grams of the text, and columns, stands in for the paper's value model, a language model.
    candidates=1 is uniform. Source: PCL, arXiv 2510.01135 (target .5, 4 candidates).

    Args:
      table: the prompts.
      seed: of the draws.
      target: success that is wanted.
      candidates: prompts drawn per prompt taken.
      columns: numbers of the records' info that V sees, too.
      features: of the text; 0: none.
      ridge: above 0.
      decay: of old groups per step, from 0 to 1.
    """
    if candidates < 1 or features < 0 or not ridge > 0 or not 0 <= decay <= 1:
        raise ValueError(
            "candidates must be 1 or more, features 0 or more, ridge above 0 and decay from 0 to 1, got "
            f"{candidates}, {features}, {ridge} and {decay}"
        )
    settings = dict(target=target, candidates=candidates, features=features, ridge=ridge, decay=decay)
    return _Learned(table, seed, tuple(columns), **settings)
