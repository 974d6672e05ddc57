"""rl_jax/core/schedules.py against formulas by hand."""

import math

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
    ],
)
def test_bad_input_is_refused(fn, keywords, said):
    with pytest.raises(ValueError, match=said):
        getattr(schedules, fn)(1, **keywords)
