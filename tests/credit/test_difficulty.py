"""credit/difficulty.py by a plain loop, and at its limits."""

import math

import numpy as np
import pytest

from rl_jax.credit.difficulty import difficulty_scale

ALIKE, GAPS = [0.9, 0.0, -0.5, 0.25], [2.0, -1.0, 0.5, 0.0]


def by_hand(data_coef, model_coef):
    """alpha = sigma(a c) / mean sigma(a c) * sigma(-b g) / mean sigma(-b g)."""

    def sigma(x):
        return 1 / (1 + math.exp(-x))

    of_data = [sigma(data_coef * c) for c in ALIKE]
    of_model = [sigma(-model_coef * g) for g in GAPS]
    means = sum(of_data) / len(ALIKE), sum(of_model) / len(GAPS)
    return [d / means[0] * m / means[1] for d, m in zip(of_data, of_model, strict=True)]


@pytest.mark.parametrize("coefs", [(1.0, 1.0), (2.0, 3.0), (0.0, 0.5), (0.5, 0.0)])
def test_it_is_the_equation(coefs):
    found = difficulty_scale(np.array(ALIKE), np.array(GAPS), data_coef=coefs[0], model_coef=coefs[1])
    np.testing.assert_allclose(found, by_hand(*coefs), rtol=1e-6)
    assert found.dtype == np.float32
    if coefs == (1.0, 1.0):
        np.testing.assert_array_equal(found, difficulty_scale(ALIKE, GAPS))  # its defaults


def test_without_coefficients_it_is_grpo_and_far_prompts_are_finite():
    np.testing.assert_array_equal(difficulty_scale(ALIKE, GAPS, data_coef=0.0, model_coef=0.0), 1.0)
    np.testing.assert_allclose(difficulty_scale([0.0, 0.0], [1e6, 2e6]), 1.0)  # both beyond the cut at 60
    low, high = difficulty_scale([0.0, 0.0], [1e6, 50.0])
    np.testing.assert_allclose(low / high, math.exp(-10), rtol=1e-5)
    np.testing.assert_allclose(difficulty_scale([0.0, 0.0], [-1e6, 1e6]), [2.0, 0.0], atol=1e-6)


@pytest.mark.parametrize("shapes", [((3,), (2,)), ((2, 1), (2, 1)), ((), ())])
def test_other_shapes_are_refused(shapes):
    with pytest.raises(ValueError, match="must be one"):
        difficulty_scale(*(np.zeros(shape) for shape in shapes))
