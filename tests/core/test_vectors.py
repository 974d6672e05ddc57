"""core/vectors.py: lengths, and a gradient that is finite at 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.vectors import unit


@pytest.mark.parametrize("eps", [1e-8, 1e-2])
def test_unit_is_the_vector_over_its_length_and_nothing_at_zero(eps):
    x = np.array([[3.0, 4.0], [0.0, 0.0], [0.03, -0.04]], np.float32)
    wanted = x / np.sqrt((x**2).sum(1, keepdims=True) + eps)
    np.testing.assert_allclose(unit(jnp.asarray(x), eps), wanted, rtol=1e-6)
    slope = jax.jacobian(lambda x: unit(x, eps))(jnp.zeros(2))
    np.testing.assert_allclose(slope, np.eye(2) / np.sqrt(eps), rtol=1e-5)
