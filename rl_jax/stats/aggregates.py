"""A table of scores in one number: statistics over runs and tasks, as defined by rliable.

scores: float [..., N, M], of N runs (seeds) of M tasks, normalised by the caller. Every statistic acts on the last two
axes, so that bootstrap resamples can be a leading axis. Source: arXiv 2108.13264.
"""

import numpy as np


def _pooled(scores: np.ndarray) -> np.ndarray:
    """float64 [..., N * M]. Raises ValueError if there are fewer than two axes, no scores, or a nan."""
    scores = _scores(scores)
    return scores.reshape(*scores.shape[:-2], -1)


def _scores(scores: np.ndarray) -> np.ndarray:
    scores = np.asarray(scores, np.float64)
    if scores.ndim < 2 or 0 in scores.shape[-2:]:
        raise ValueError(f"scores must be [..., runs, tasks], got {scores.shape}; for one task pass values[:, None]")
    if np.isnan(scores).any():
        raise ValueError("a score is nan: give a failed run a score (the worst possible one), or leave it out")
    return scores


def mean(scores: np.ndarray) -> np.ndarray:
    """The mean of all scores. float [..., N, M] -> [...]."""
    return _scores(scores).mean(axis=(-2, -1))


def median(scores: np.ndarray) -> np.ndarray:
    """The median over the tasks of each task's mean, not of all scores. float [..., N, M] -> [...]."""
    return np.median(_scores(scores).mean(axis=-2), axis=-1)


def iqm(scores: np.ndarray) -> np.ndarray:
    """Interquartile mean: the mean of all N M scores except the floor(N M / 4) lowest and as many highest ones.

    Whole scores are dropped, without weighting (like scipy.stats.trim_mean at 0.25), so fewer than four are averaged.
    float [..., N, M] -> [...].
    """
    pooled = _pooled(scores)
    cut = pooled.shape[-1] // 4
    return np.sort(pooled, axis=-1)[..., cut : pooled.shape[-1] - cut].mean(axis=-1)


def optimality_gap(scores: np.ndarray, target: float = 1.0) -> np.ndarray:
    """target - mean(min(score, target)): by how much the runs fall short of the target; lower is better.

    float [..., N, M] -> [...].
    """
    return target - np.minimum(_scores(scores), target).mean(axis=(-2, -1))


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """F(tau), the share of runs with a score above tau (strictly): the run-score distribution.

    float [..., N, M], thresholds float [K] -> [..., K].
    """
    return _share_above(_pooled(scores), thresholds)


def average_performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """The share of tasks whose mean score is above tau: the average-score distribution, which is biased.

    float [..., N, M], thresholds float [K] -> [..., K].
    """
    return _share_above(_scores(scores).mean(axis=-2), thresholds)


def _share_above(values: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """float [..., J], [K] -> [..., K]; threshold by threshold, since all at once need K times the memory."""
    return np.stack([(values > threshold).mean(axis=-1) for threshold in np.asarray(thresholds, np.float64)], axis=-1)


def probability_of_improvement(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """P(X > Y): the mean over tasks of the share of pairs of runs that x wins (Mann-Whitney's U / (N L)); ties are 1/2.

    Args:
      x: float [..., N, M].
      y: float [..., L, M].

    Returns:
      float [...].

    Raises:
      ValueError: if the numbers of tasks differ.
    """
    x, y = _scores(x), _scores(y)
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(f"both sides need the same tasks, got scores of {x.shape[-1]} and of {y.shape[-1]}")
    wins = x[..., :, None, :] > y[..., None, :, :]
    ties = x[..., :, None, :] == y[..., None, :, :]
    return (wins + 0.5 * ties).mean(axis=(-3, -2, -1))
