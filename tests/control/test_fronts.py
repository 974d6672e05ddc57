"""control/fronts.py: the functions of stats.pareto inside a compiled program, with points that are missing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.control import fronts
from rl_jax.stats import pareto

SMALL = np.array([(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)])


@pytest.fixture(scope="module")
def measured():
    """A function of points, kept and weights: every statistic of them, compiled once for each shape."""

    @jax.jit
    def measure(points, kept, weights):
        front = fronts.nondominated(points, kept)
        zero = jnp.zeros(points.shape[1])
        utility = fronts.expected_utility(points, kept, weights)
        return front, fronts.hypervolume(points, kept, zero), utility, fronts.crowding(points, front)

    return measure


@pytest.mark.parametrize("objectives", [2, 3])
def test_they_are_those_of_numpy_for_the_points_that_are_kept(measured, objectives):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        points = rng.integers(-1, 5, size=(9, objectives)).astype(np.float32)  # equal ones, and some not above 0
        kept = rng.uniform(size=9) < 0.8
        weights = pareto.weight_grid(objectives, 4)
        front, volume, utility, crowding = measured(points, kept, weights)
        index = np.flatnonzero(kept)[pareto.front(points[kept])]
        np.testing.assert_array_equal(np.flatnonzero(front), index)
        assert volume == pytest.approx(pareto.hypervolume(points[kept], np.zeros(objectives)), rel=1e-5)
        assert utility == pytest.approx(pareto.expected_utility(points[kept], weights), rel=1e-5)
        np.testing.assert_allclose(crowding[index], pareto.crowding(points[index]), rtol=1e-5)
        assert (np.delete(crowding, index) == -1).all()


def test_the_published_values_of_a_small_front(measured):
    front, volume, utility, crowding = measured(SMALL, np.ones(3, bool), pareto.weight_grid(2, 10))
    assert front.all() and volume == 6.0 and utility == pytest.approx(2.5454545)
    np.testing.assert_allclose(crowding, [np.inf, 2.0, np.inf])
