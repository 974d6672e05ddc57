"""Reductions over a mask, one element at a time, in float64."""

import numpy as np


def values_of(x, mask):
    """The values of `x` where `mask`, as a flat list of python floats."""
    return [float(v) for v, m in zip(np.ravel(x), np.ravel(mask), strict=True) if m]


def masked_sum(x, mask):
    """Sum of the values on the mask."""
    return sum(values_of(x, mask))


def masked_mean(x, mask):
    """Arithmetic mean of the values on the mask, 0 when there are none."""
    values = values_of(x, mask)
    return sum(values) / len(values) if values else 0.0


def masked_var(x, mask, ddof):
    """sum (x - mean)^2 / (n - ddof) over the values on the mask, 0 where n <= ddof."""
    values = values_of(x, mask)
    if len(values) <= ddof:
        return 0.0
    mean = sum(values) / len(values)
    return sum((v - mean) ** 2 for v in values) / (len(values) - ddof)


def row_means(x, mask):
    """The mean of each row over its own mask."""
    return np.array([masked_mean(row, row_mask) for row, row_mask in zip(x, mask, strict=True)])


def masked_whiten(x, mask, ddof, eps, shift_mean=True):
    """(x - mean) / sqrt(var + eps) on the mask (+ mean where it is not shifted), 0 behind it."""
    mean, var = masked_mean(x, mask), masked_var(x, mask, ddof)
    out = np.zeros(np.shape(x))
    for i in np.ndindex(*out.shape):
        if mask[i]:
            out[i] = (float(x[i]) - mean) / np.sqrt(var + eps) + (0.0 if shift_mean else mean)
    return out
