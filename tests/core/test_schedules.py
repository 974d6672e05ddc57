"""rl_jax/core/schedules.py against formulas by hand."""

import math

import numpy as np
import pytest

from rl_jax.core import schedules
from rl_jax.core.binding import public_functions

WAY = dict(start=2.0, end=0.5, steps=4)


@pytest.mark.parametrize(
    ("fn", "keywords", "expected"),
    [
        ("constant", dict(value=3.0), [3.0] * 6),
        ("linear", WAY, [2.0, 1.625, 1.25, 0.875, 0.5, 0.5]),
        ("cosine", WAY, [0.5 + 0.75 * (1 + math.cos(math.pi * s / 4)) for s in range(5)] + [0.5]),
        ("exponential", WAY, [2.0 * 0.25 ** (s / 4) for s in range(5)] + [0.5]),
        ("piecewise", dict(values=((1, 0.1), (3, 0.2), (6, 0.0))), [0.1, 0.1, 0.2, 0.2, 0.2, 0.0]),
        ("warmup", dict(end=1.0, steps=2), [0.0, 0.5, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_values_from_the_first_step_on(fn, keywords, expected):
    found = [getattr(schedules, fn)(step, **keywords) for step in range(1, 7)]
    assert found == pytest.approx(expected, abs=1e-12)
    assert found[0] == expected[0] and set(public_functions(schedules)) >= {fn}
    assert getattr(schedules, fn)(0, **keywords) == found[0], "a step before the first is the first"


@pytest.mark.parametrize(
    ("fn", "keywords", "said"),
    [
        ("linear", WAY | dict(steps=0), "steps=0 must be 1 or more"),
        ("exponential", WAY | dict(end=0.0), "must be above 0"),
        ("piecewise", dict(values=((2, 0.1),)), "rise from 1"),
        ("piecewise", dict(values=((1, 0.1), (1, 0.2))), "rise from 1"),
        ("piecewise", dict(values=()), "rise from 1"),
        ("explore_then_exploit", dict(low=0.0, high=1.0, steps=0), "steps=0 must be 1 or more"),
        ("explore_then_exploit", dict(low=0.0, high=1.0, steps=9, share=1.0), "share=1.0 above 0 and below 1"),
    ],
)
def test_bad_input_is_refused(fn, keywords, said):
    with pytest.raises(ValueError, match=said):
        getattr(schedules, fn)(1, **keywords)


def test_grpo_d_eases_the_kl_and_then_tightens_it():
    """Eq. 3 of arXiv 2503.16081 with its numbers of geometry, and those of counting, in a run of 100 steps."""

    def paper(s, t, low, high):
        w, mid = 0.3 * t, (low + high) / 2
        return mid - (mid - low) * s / w if s <= w else low + (high - low) * (s - w) / (t - w)

    for low, high in ((0.0, 0.02), (0.04, 0.1)):
        found = [schedules.explore_then_exploit(s, low=low, high=high, steps=100) for s in range(1, 101)]
        np.testing.assert_allclose(found, [paper(s, 100, low, high) for s in range(1, 101)], atol=1e-12)
        assert np.argmin(found) == 29 and found[29] == pytest.approx(low) and found[-1] == pytest.approx(high)
        assert low < found[0] < (low + high) / 2, "the first step is one of the exploration"
        assert schedules.explore_then_exploit(500, low=low, high=high, steps=100) == pytest.approx(high)
