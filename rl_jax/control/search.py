"""Search over the weights of a reward's terms: proposals, and how the best of a generation is chosen. numpy only.

random      the first generation at large, the next ones around the best so far       2310.12931, without code
preference  the best and the worst by votes between pairs, P = sigma(beta (s_i - s_j))          ICPL 2410.17233
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

Weights = dict[str, float]


def at_large(rng: np.random.Generator, hand: Mapping[str, float], count: int, *, spread: float = 10.0) -> list[Weights]:
    """`count` candidates: each weight of `hand` times a factor, log-uniform in [1 / spread, spread], either sign.

    Args:
      rng: numpy generator.
      hand: name -> the hand-written weight; 0 counts as 1.
      count: number of candidates.
      spread: largest factor.
    """
    reach = math.log(spread)
    return [
        {
            name: float((weight or 1.0) * math.exp(rng.uniform(-reach, reach)) * (-1.0 if rng.random() < 0.25 else 1.0))
            for name, weight in hand.items()
        }
        for _ in range(count)
    ]


def around(
    rng: np.random.Generator,
    best: Mapping[str, float],
    count: int,
    *,
    worst: Mapping[str, float] | None = None,
    spread: float = 0.5,
    away: float = 0.2,
) -> list[Weights]:
    """`best` itself, then count - 1 candidates near it: each weight times exp(spread z), moved away from the worst.

    Args:
      rng: numpy generator.
      best: the best candidate so far.
      count: number of candidates.
      worst: the worst of the last generation; None for none.
      spread: of the factors' logs.
      away: share of best - worst that is added.
    """
    push = {name: away * (best[name] - worst[name]) if worst is not None else 0.0 for name in best}
    near = [
        {name: float(best[name] * math.exp(spread * rng.normal()) + push[name] * rng.uniform()) for name in best}
        for _ in range(count - 1)
    ]
    return [dict(best), *near]


def voted(rng: np.random.Generator, scores: Sequence[float], *, beta: float = math.inf) -> tuple[int, int]:
    """(index of the best, of the worst) by the number of pairs that each candidate wins.

    Args:
      rng: numpy generator.
      scores: what the voter sees of each candidate; a candidate that is not finite loses all its pairs.
      beta: the voter's rationality per standard deviation of the scores; inf never errs.
    """
    values = np.where(np.isfinite(scores), np.asarray(scores, float), -np.inf)
    scale = np.std(values[np.isfinite(values)]) if np.isfinite(values).any() else 1.0
    wins = np.zeros(len(values))
    for left in range(len(values)):
        for right in range(left):
            finite = np.isfinite(values[left]) and np.isfinite(values[right])
            gap = values[left] - values[right] if finite else float(np.isfinite(values[left])) - 0.5
            if math.isinf(beta) or not finite:
                prob = 0.5 if gap == 0 else float(gap > 0)
            else:
                prob = 1.0 / (1.0 + math.exp(-min(max(beta * gap / (scale or 1.0), -50.0), 50.0)))
            won = rng.random() < prob
            wins[left if won else right] += 1
    return int(np.argmax(wins)), int(np.argmin(wins))
