"""How well comparisons determine rewards: the induced Bayesian network of arXiv 2402.10184, with Gaussian edges.

Answers are nodes. A comparison of i and j tells r_i - r_j up to noise of variance v; so does the inductive bias of a
reward model for two similar answers, with another v. What all edges together tell of r_i - r_j has the variance

    Var(r_i - r_j) = L+_ii + L+_jj - 2 L+_ij,   L the Laplacian of the precisions 1 / v, L+ its pseudo-inverse

which is the effective resistance between i and j. The paper takes the best path instead, whose variance is the sum of
its edges' (`path_variances`): an upper bound of the former.
"""

from collections.abc import Sequence

import numpy as np

Edge = tuple[int, int, float]  # two nodes, the variance


def posterior_variances(count: int, edges: Sequence[Edge]) -> np.ndarray:
    """float64 [count, count] of Var(r_i - r_j) given all edges; inf between nodes that are not connected.

    Args:
      count: of the nodes.
      edges: (i, j, variance above 0); several between two nodes add their precisions.

    Raises:
      ValueError: if an edge is no edge.
    """
    _check(count, edges)
    laplacian = np.zeros((count, count))
    for i, j, variance in edges:
        laplacian[[i, j], [i, j]] += 1.0 / variance
        laplacian[[i, j], [j, i]] -= 1.0 / variance
    inverse = np.linalg.pinv(laplacian)
    diagonal = np.diag(inverse)
    found = diagonal[:, None] + diagonal[None] - 2.0 * inverse
    return np.where(np.isfinite(path_variances(count, edges)), np.maximum(found, 0.0), np.inf)


def path_variances(count: int, edges: Sequence[Edge]) -> np.ndarray:
    """float64 [count, count] of the variance along the best path between two nodes; inf if there is none.

    Args:
      count: of the nodes.
      edges: as in `posterior_variances`.

    Raises:
      ValueError: if an edge is no edge.
    """
    _check(count, edges)
    best = np.full((count, count), np.inf)
    np.fill_diagonal(best, 0.0)
    for i, j, variance in edges:
        best[i, j] = best[j, i] = min(best[i, j], variance)
    for middle in range(count):
        best = np.minimum(best, best[:, middle, None] + best[None, middle])
    return best


def _check(count: int, edges: Sequence[Edge]) -> None:
    for edge in edges:
        i, j, variance = edge
        if not (0 <= i < count and 0 <= j < count and i != j and 0 < variance < np.inf):
            raise ValueError(f"edge {edge}: expected two different nodes below {count} and a variance above 0")
