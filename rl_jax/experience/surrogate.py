"""Which mixture of sources to train on, from a few runs with known mixtures: MoDoMoDo's quadratic surrogate."""

import itertools

import numpy as np

MAX_SOURCES = 12  # the 2^K - 1 faces of the simplex are searched one by one


def fit_quadratic(weights: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The symmetric Q with the least squared error of score = w^T Q w.

    On mixtures, which sum to 1, every quadratic a + b^T w + w^T C w has this form.
    Source: MoDoMoDo, arXiv 2505.24871.

    Args:
      weights: float [n, K]. The mixtures; each row is divided by its sum.
      scores: float [n]. What each run reached.

    Returns:
      float64 [K, K].

    Raises:
      ValueError: if the mixtures do not determine Q: K (K + 1) / 2 of them must be in general position.
    """
    weights, scores = np.asarray(weights, np.float64), np.asarray(scores, np.float64)
    if weights.ndim != 2 or scores.shape != weights.shape[:1] or not np.all(np.isfinite(scores)):
        raise ValueError(f"weights must be [n, K] and scores n finite numbers, got {weights.shape} and {scores.shape}")
    if not np.all(weights >= 0) or not np.all(weights.sum(axis=1) > 0):
        raise ValueError("weights must be 0 or more, and some of each mixture above 0")
    shares, count = weights / weights.sum(axis=1, keepdims=True), weights.shape[1]
    pairs = list(itertools.combinations_with_replacement(range(count), 2))
    columns = np.stack([shares[:, i] * shares[:, j] * (1 if i == j else 2) for i, j in pairs], axis=1)
    if np.linalg.matrix_rank(columns, tol=1e-9) < len(pairs):
        raise ValueError(
            f"{len(scores)} mixtures of {count} sources do not determine the {len(pairs)} numbers of a quadratic: add "
            "runs with other weights, the single sources and pairs of them first"
        )
    found, result = np.linalg.lstsq(columns, scores, rcond=None)[0], np.zeros((count, count))
    for value, (i, j) in zip(found, pairs, strict=True):
        result[i, j] = result[j, i] = value
    return result


def best_mixture(quadratic: np.ndarray) -> tuple[np.ndarray, float]:
    """The mixture with the highest w^T Q w, exactly: the best stationary point of all faces of the simplex.

    Args:
      quadratic: float [K, K], symmetric, K up to 12.

    Returns:
      (float64 [K], sums to 1; its value).

    Raises:
      ValueError: if there are too many sources.
    """
    count = len(quadratic)
    if count > MAX_SOURCES:
        raise ValueError(f"{count} sources are too many: {MAX_SOURCES} at most")
    best, highest = np.full(count, 1.0 / count), -np.inf
    for size in range(1, count + 1):
        for face in map(list, itertools.combinations(range(count), size)):
            inside = quadratic[np.ix_(face, face)]
            system = np.block([[2 * inside, -np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]])
            point = np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0][:size]
            if point.min() < -1e-9 or abs(point.sum() - 1) > 1e-6:
                continue
            point = np.maximum(point, 0.0) / np.maximum(point, 0.0).sum()
            value = float(point @ inside @ point)
            if value > highest + 1e-12:
                best, highest = np.zeros(count), value
                best[face] = point
    return best, highest
