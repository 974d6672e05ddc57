"""stats/pareto.py: the published values of a small front, and enumeration."""

import itertools

import numpy as np

from rl_jax.stats import pareto

FRONT = np.array([(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)])


def test_the_metrics_of_c_morl():
    """HV = 6, EU = 2.54545, SP = 2.0 (2410.02236's code and pymoo 0.6.2, measured)."""
    assert pareto.hypervolume(FRONT, (0.0, 0.0)) == 6.0
    np.testing.assert_allclose(pareto.expected_utility(FRONT, pareto.weight_grid(2, 10)), 2.5454545)
    assert pareto.sparsity(FRONT) == 2.0 and pareto.sparsity(FRONT[:1]) == 0.0


def test_fronts_and_grids():
    points = np.array([(1, 1), (2, 0), (0, 2), (0.5, 0.5), (2, 0), (1, 0.5)], float)
    np.testing.assert_array_equal(pareto.front(points), [0, 1, 2])
    assert len(pareto.weight_grid(3, 10)) == 66  # a float sum == 1 keeps 62 of them
    np.testing.assert_allclose(pareto.weight_grid(3, 10).sum(1), 1.0)
    np.testing.assert_allclose(pareto.crowding(FRONT), [np.inf, 2.0, np.inf])


def test_the_volume_in_three_dimensions_by_counting():
    points = np.random.default_rng(0).integers(0, 5, size=(6, 3)).astype(float)
    cells = itertools.product(range(5), repeat=3)
    counted = sum(any((np.array(cell) + 1 <= point).all() for point in points) for cell in cells)
    assert pareto.hypervolume(points, (0.0, 0.0, 0.0)) == counted
    assert pareto.hypervolume(points, (9.0, 9.0, 9.0)) == 0.0
