"""control/duels.py: one of two wins."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from configs.control.preferences import CYCLE
from rl_jax.control import duels


@pytest.mark.parametrize(
    "preference",
    [
        duels.greater,
        functools.partial(duels.bradley_terry, temperature=0.7),
        functools.partial(duels.table, probs=CYCLE),
    ],
)
def test_one_of_two_wins(preference):
    mine, theirs = jnp.array([0.0, 1.0, 2.0]), jnp.array([1.0, 2.0])
    probs = preference(mine, theirs)
    assert probs.shape == (3, 2)
    np.testing.assert_allclose(probs + preference(theirs, mine).T, 1.0, rtol=1e-6)


def test_the_values_of_duels():
    x, y = jnp.array([0.0, 2.0]), jnp.array([0.0, 1.0])
    np.testing.assert_array_equal(duels.greater(x, y), [[0.5, 0.0], [1.0, 1.0]])
    np.testing.assert_allclose(duels.bradley_terry(x, y, temperature=2.0)[1], 1 / (1 + np.exp([-1.0, -0.5])), rtol=1e-6)
    np.testing.assert_allclose(duels.table(x, y, probs=CYCLE), [[0.5, 0.9], [0.6, 0.3]], rtol=1e-6)
    with pytest.raises(ValueError, match="P\\(i beats j\\) \\+ P\\(j beats i\\) is 1"):
        duels.table(x, y, probs=((0.5, 0.9), (0.2, 0.5)))
