"""Random ragged batches that the laws are applied to."""

from typing import NamedTuple

import numpy as np


class Batch(NamedTuple):
    """Arrays [B, T] of one batch, numpy; every row keeps a token unless the mask is edited afterwards."""

    log_probs: np.ndarray
    old_log_probs: np.ndarray
    advantages: np.ndarray
    ref_log_probs: np.ndarray
    mask: np.ndarray


def ragged_batch(seed=0, rows=8, length=6, dtype=np.float32) -> Batch:
    """Rows of different lengths, advantages of both signs, ratios from about 0.4 to 2.5 (both clips active).

    The first row is full and the mask of the second has a hole, as in multi-turn completions. No ratio of these lies
    within 1e-3 of 1 - .2, 1 + .2 or 1 + .28, where the gradient jumps.
    """
    rng = np.random.default_rng(seed)
    lengths = np.concatenate([[length], rng.integers(1, length + 1, rows - 1)])
    mask = np.arange(length) < lengths[:, None]
    if rows > 1:
        mask[1] = np.arange(length) % 2 == 0
    log_ratio = rng.uniform(-0.9, 0.9, (rows, length))
    for bound in (0.8, 1.2, 1.28):
        near = np.abs(np.exp(log_ratio) - bound) < 1e-3
        log_ratio[near] += 0.01
    log_probs = rng.uniform(-3.0, -0.1, (rows, length))
    advantages = rng.uniform(0.2, 1.5, (rows, length)) * np.where(rng.random((rows, 1)) < 0.5, -1.0, 1.0)
    advantages[:2] = np.abs(advantages[:2]) * np.array([[1.0], [-1.0]])[:rows]  # both signs in every batch
    ref_log_probs = log_probs + rng.uniform(-0.8, 0.8, (rows, length))
    arrays = (log_probs, log_probs - log_ratio, advantages, ref_log_probs)
    return Batch(*(x.astype(dtype) for x in arrays), mask)
