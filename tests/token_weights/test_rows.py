"""token_weights/rows.py by hand."""

import jax
import numpy as np
import pytest

from rl_jax.token_weights.rows import by_difficulty


def test_each_token_has_its_rows_difficulty():
    mask = np.array([[1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 1, 1]], bool)
    hard = np.float32([0.5, np.nan, 2.0, -1.5])
    expected = [[0.5, 0.5, 0], [0, 0, 0], [2, 0, 2], [0, -1.5, -1.5]]
    np.testing.assert_array_equal(by_difficulty(mask, difficulty=hard), expected)
    slope = jax.grad(lambda x: by_difficulty(mask, difficulty=x).sum())(hard)
    np.testing.assert_array_equal(slope, mask.sum(axis=1))
    for wrong in (hard[:3], hard[:1]):
        with pytest.raises(AssertionError):
            by_difficulty(mask, difficulty=wrong)
