"""P-values of several comparisons, corrected for their number."""

from collections.abc import Sequence

import numpy as np
from scipy import stats as scipy_stats


def _p_values(p_values: Sequence[float]) -> np.ndarray:
    p_values = np.asarray(p_values, np.float64)
    if p_values.ndim != 1 or not p_values.size or not ((p_values >= 0.0) & (p_values <= 1.0)).all():
        raise ValueError(f"expected a 1-D array of p-values in [0, 1], got {p_values.tolist()}")
    return p_values


def holm(p_values: Sequence[float]) -> np.ndarray:
    """Holm's adjusted p-values: rejecting those <= alpha makes one or more false rejections with probability <= alpha.

        adjusted_(i) = max_{j <= i} min(1, (m - j + 1) p_(j)),   p_(1) <= .. <= p_(m)

    Holds for any dependence. float [m] -> [m], in the given order.

    Raises:
      ValueError: if a value is not a p-value.
    """
    p_values = _p_values(p_values)
    order = np.argsort(p_values)
    scaled = np.minimum(p_values[order] * np.arange(len(p_values), 0, -1), 1.0)
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.maximum.accumulate(scaled)
    return adjusted


def benjamini_hochberg(p_values: Sequence[float]) -> np.ndarray:
    """Benjamini and Hochberg's adjusted p-values: rejecting those <= alpha keeps the false discovery rate <= alpha.

    Holds for independent and positively dependent tests. float [m] -> [m], in the given order.

    Raises:
      ValueError: if a value is not a p-value.
    """
    return scipy_stats.false_discovery_control(_p_values(p_values), method="bh")
