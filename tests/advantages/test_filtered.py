"""Advantages of which outliers are dropped."""

import numpy as np
import pytest

from rl_jax.advantages import filtered
from rl_jax.advantages.outcome import batch_relative

REWARDS = np.array([0.0, 1.0] * 10 + [50.0], np.float32)


@pytest.mark.parametrize("sign", [1, -1])
def test_an_outlier_moves_nothing(sign):
    """On both sides: its advantage is 0, those of the others stay as they were."""
    plain = batch_relative(sign * REWARDS)
    assert np.abs(plain[-1]) > 3
    found = filtered.three_sigma(sign * REWARDS)
    assert found[-1] == 0
    np.testing.assert_array_equal(found[:-1], plain[:-1])


def test_within_the_limit_nothing_changes():
    np.testing.assert_array_equal(filtered.three_sigma(REWARDS, limit=5.0), batch_relative(REWARDS))
    np.testing.assert_array_equal(filtered.three_sigma(REWARDS[:-1]), batch_relative(REWARDS[:-1]))


def test_the_limit_is_three_and_belongs_to_what_stays():
    """z of one outlier among n zeros is (n - 1) / sqrt(n) with ddof 1: 3.015 of eleven, 2.846 of ten."""
    for n, stays in ((11, False), (10, True)):
        rewards = 1e4 * np.eye(1, n, dtype=np.float32)[0]
        assert (filtered.three_sigma(rewards)[0] != 0) == stays
    z = batch_relative(REWARDS)
    np.testing.assert_array_equal(filtered.three_sigma(REWARDS, limit=float(z[-1])), z)
    np.testing.assert_array_equal(filtered.three_sigma(REWARDS, limit=0.5), np.where(np.abs(z) <= 0.5, z, 0.0))


def test_the_limit_is_above_zero():
    with pytest.raises(ValueError, match="limit=0 must be above 0"):
        filtered.three_sigma(REWARDS, limit=0)
