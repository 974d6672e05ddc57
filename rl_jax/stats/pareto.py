"""Fronts of several objectives, all to be large: dominance, hypervolume, expected utility, sparsity."""

import itertools
from collections.abc import Sequence

import numpy as np


def front(points: np.ndarray) -> np.ndarray:
    """Indices of the points that no other one dominates, the first of equal ones only: int [M].

    Args:
      points: float [N, K]. A point dominates another if it is at least as large in each objective, and larger in one.
    """
    points = np.asarray(points, float)
    kept = []
    for i, point in enumerate(points):
        better = (points >= point).all(1) & (points > point).any(1)
        same_before = (points[:i] == point).all(1).any()
        if not better.any() and not same_before:
            kept.append(i)
    return np.asarray(kept, int)


def hypervolume(points: np.ndarray, reference: Sequence[float]) -> float:
    """The volume that the points dominate above the reference point.

    Source: the definition, by slices along the last objective; K = 2 or 3 objectives and few points.

    Args:
      points: float [N, K].
      reference: float [K]. Points that are not above it count nothing.
    """
    points = np.asarray(points, float).reshape(-1, len(reference)) - np.asarray(reference, float)
    points = points[(points > 0).all(1)]
    if not len(points):
        return 0.0
    if points.shape[1] == 1:
        return float(points.max())
    heights = np.unique(np.concatenate([[0.0], points[:, -1]]))
    zero = np.zeros(points.shape[1] - 1)
    return sum(
        (high - low) * hypervolume(points[points[:, -1] >= high][:, :-1], zero)
        for low, high in itertools.pairwise(heights)
    )


def weight_grid(objectives: int, parts: int, *, name: str = "parts") -> np.ndarray:
    """All weights i / parts that sum to 1, float [W, K]: from integer compositions, so that rounding loses none.

    Args:
      objectives: K.
      parts: of 1, at least one.
      name: of the config's field that has the parts.

    Raises:
      ValueError: if parts is below 1.
    """
    if parts < 1:
        raise ValueError(f"{name}={parts} must be 1 or more")
    cuts = itertools.combinations(range(parts + objectives - 1), objectives - 1)
    bars = [(-1, *cut, parts + objectives - 1) for cut in cuts]
    return np.array([[b - a - 1 for a, b in itertools.pairwise(bar)] for bar in bars]) / parts


def expected_utility(points: np.ndarray, weights: np.ndarray) -> float:
    """mean_w max_p w . p. points: float [N, K]; weights: float [W, K]."""
    return float(np.mean(np.max(np.asarray(weights) @ np.asarray(points, float).T, axis=1)))


def sparsity(points: np.ndarray) -> float:
    """1 / (N - 1) sum_k sum_i (gap of neighbours in objective k)^2, 0 for one point. points: float [N, K]."""
    points = np.sort(np.asarray(points, float), axis=0)
    return float(np.sum(np.diff(points, axis=0) ** 2) / (len(points) - 1)) if len(points) > 1 else 0.0


def crowding(points: np.ndarray) -> np.ndarray:
    """Sum over the objectives of the gap between a point's neighbours, over its range; inf at the ends: float [N].

    Source: NSGA-II (Deb et al., 2002).
    """
    points = np.asarray(points, float)
    result = np.zeros(len(points))
    for values in points.T:
        order = np.argsort(values, kind="stable")
        spread = values[order[-1]] - values[order[0]]
        result[order[[0, -1]]] = np.inf
        if spread > 0:
            result[order[1:-1]] += (values[order[2:]] - values[order[:-2]]) / spread
    return result


def check_weights(name: str, weights: Sequence[float], objectives: int) -> np.ndarray:
    """One number for each objective as float32 [K], ones if there are none.

    Args:
      name: of the config's field.
      weights: () or K numbers.
      objectives: K; 0 if the reward is one number.

    Raises:
      ValueError: if their number is not K, or the reward is one number.
    """
    if not objectives:
        raise ValueError(f"{name}: the environment's reward is one number: leave it out")
    if len(weights) not in (0, objectives):
        raise ValueError(f"{name}={tuple(weights)} must be {objectives} numbers, one for each objective")
    return np.asarray(weights, np.float32) if len(weights) else np.ones(objectives, np.float32)


def check_scales(name: str, scales: Sequence[float], objectives: int) -> np.ndarray:
    """check_weights for numbers that divide rewards, float32 [K].

    Raises:
      ValueError: also if one of them is not a finite number above 0: a negative one turns an objective around.
    """
    found = check_weights(name, scales, objectives)
    if not ((found > 0) & np.isfinite(found)).all():
        raise ValueError(f"{name}={tuple(scales)} must be above 0, each of them: rewards are divided by it")
    return found
