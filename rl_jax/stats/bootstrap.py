"""Intervals of any statistic of a table of scores: the stratified bootstrap of rliable, with a key."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rl_jax.stats.aggregates import iqm

CHUNK = 2**21  # scores resampled at once: 16 MiB


class Estimate(NamedTuple):
    """A statistic of the scores with its interval. value, low, high: float, or arrays of what the statistic gives."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def stratified_bootstrap(
    statistic: Callable, *scores: np.ndarray, key: int = 0, confidence: float = 0.95, resamples: int = 10_000
) -> Estimate:
    """A statistic with its percentile interval, of resamples that draw N runs of each task with replacement.

    The tasks are kept as they are: the interval says what other seeds would give, not what other tasks would. With
    fewer than about 10 runs in a task it is too narrow, the more so the fewer the tasks are (rliable's is the same);
    of the mean of one task `bootstrap_mean` is the better interval.

    statistic: of rl_jax.stats.aggregates, or any function of arrays [..., N, M] that keeps the leading axes.
    scores: float [N, M], or several of the same tasks, resampled independently (probability_of_improvement). A further
    axis, as of [N, M, T], is kept: the statistic acts on [..., T, N, M] and a run is drawn with all its T checkpoints.
    key: of the resampling. Raises ValueError where a table has fewer than two runs.
    Source: arXiv 2108.13264 (50,000 resamples; 2,000 of a profile).
    """
    tables = [np.asarray(table, np.float64) for table in scores]
    for table in tables:
        if table.ndim not in (2, 3) or table.shape[0] < 2:
            raise ValueError(f"an interval needs scores [runs, tasks] of at least two runs, got {table.shape}")
    rng, size = np.random.default_rng(key), max(CHUNK // max(table.size for table in tables), 1)
    found = []
    for start in range(0, resamples, size):
        count = min(size, resamples - start)
        found.append(statistic(*(_resampled(rng, table, count) for table in tables)))
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(np.concatenate(found), [tail, 1.0 - tail], axis=0)
    value = statistic(*(_checkpoints_first(table) for table in tables))
    return Estimate(value[()], low[()], high[()])


def sample_efficiency(curves: np.ndarray, statistic: Callable = iqm, **keywords) -> Estimate:
    """A statistic at each checkpoint with its pointwise interval: it holds at each of them, not at all of them at once.

    curves: float [N, M, T], N runs of M tasks at the same T steps. keywords: those of stratified_bootstrap.
    Returns arrays [T]. Raises ValueError for another number of axes.
    """
    curves = np.asarray(curves, np.float64)
    if curves.ndim != 3:
        raise ValueError(f"curves are [runs, tasks, checkpoints], got {curves.shape}")
    return stratified_bootstrap(statistic, curves, **keywords)


def _checkpoints_first(table: np.ndarray) -> np.ndarray:
    """float [..., N, M, T] -> [..., T, N, M]; a table without checkpoints stays as it is."""
    return np.moveaxis(table, -1, 0) if table.ndim == 3 else table


def _resampled(rng: np.random.Generator, table: np.ndarray, count: int) -> np.ndarray:
    """float [N, M] -> [count, N, M], or [N, M, T] -> [count, T, N, M]: each task's runs drawn on their own."""
    runs, tasks = table.shape[:2]
    drawn = table[rng.integers(runs, size=(count, runs, tasks)), np.arange(tasks)[None, None, :]]
    return np.moveaxis(drawn, -1, 1) if table.ndim == 3 else drawn
