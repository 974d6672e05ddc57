"""Intervals for any statistic of a table of scores: rliable's stratified bootstrap, with a key."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rl_jax.stats.aggregates import iqm

CHUNK = 2**21  # scores resampled at once, 16 MiB


class Estimate(NamedTuple):
    """A statistic of the scores with its interval. All are float, or arrays of the statistic's shape.

    Attributes:
      value: the statistic of the scores.
      low: lower end.
      high: upper end.
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def stratified_bootstrap(
    statistic: Callable, *scores: np.ndarray, key: int = 0, confidence: float = 0.95, resamples: int = 10_000
) -> Estimate:
    """A statistic with its percentile interval, over resamples of N runs of each task with replacement.

    The tasks are fixed: the interval covers other seeds, not other tasks. With fewer than about 10 runs per task it is
    too narrow, the more so the fewer tasks there are (as is rliable's); for the mean of one task `bootstrap_mean` is
    the better interval.
    Source: arXiv 2108.13264 (50,000 resamples; 2,000 for a profile).

    Args:
      statistic: of rl_jax.stats.aggregates, or any function of arrays [..., N, M] that keeps the leading axes.
      *scores: float [N, M], or several tables of the same tasks, resampled independently (probability_of_improvement).
        A further axis, as in [N, M, T], is kept: the statistic acts on [..., T, N, M], and a run is resampled with all
        its T checkpoints.
      key: of the resampling.
      confidence: of the interval.
      resamples: number of resamples.

    Raises:
      ValueError: if a table has fewer than two runs.
    """
    tables = [np.asarray(table, np.float64) for table in scores]
    for table in tables:
        if table.ndim not in (2, 3) or table.shape[0] < 2:
            raise ValueError(f"an interval needs scores [runs, tasks] of at least two runs, got {table.shape}")
    rng, size = np.random.default_rng(key), max(CHUNK // max(table.size for table in tables), 1)
    result = []
    for start in range(0, resamples, size):
        count = min(size, resamples - start)
        result.append(statistic(*(_resampled(rng, table, count) for table in tables)))
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(np.concatenate(result), [tail, 1.0 - tail], axis=0)
    value = statistic(*(_checkpoints_first(table) for table in tables))
    return Estimate(value[()], low[()], high[()])


def sample_efficiency(curves: np.ndarray, statistic: Callable = iqm, **keywords) -> Estimate:
    """A statistic at each checkpoint with its pointwise interval, which holds at each one but not at all jointly.

    Args:
      curves: float [N, M, T], N runs of M tasks at the same T steps.
      statistic: as in `stratified_bootstrap`.
      **keywords: of `stratified_bootstrap`.

    Returns:
      Estimate of arrays [T].

    Raises:
      ValueError: if curves does not have three axes.
    """
    curves = np.asarray(curves, np.float64)
    if curves.ndim != 3:
        raise ValueError(f"curves must be [runs, tasks, checkpoints], got {curves.shape}")
    return stratified_bootstrap(statistic, curves, **keywords)


def _checkpoints_first(table: np.ndarray) -> np.ndarray:
    """float [..., N, M, T] -> [..., T, N, M]; a table without checkpoints is returned unchanged."""
    return np.moveaxis(table, -1, 0) if table.ndim == 3 else table


def _resampled(rng: np.random.Generator, table: np.ndarray, count: int) -> np.ndarray:
    """float [N, M] -> [count, N, M], or [N, M, T] -> [count, T, N, M]: each task's runs resampled independently."""
    runs, tasks = table.shape[:2]
    drawn = table[rng.integers(runs, size=(count, runs, tasks)), np.arange(tasks)[None, None, :]]
    return np.moveaxis(drawn, -1, 1) if table.ndim == 3 else drawn
