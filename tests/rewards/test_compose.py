"""rewards/compose.py against numpy and numbers of papers: sums, gates, vetoes, means, saturation, dispatch."""

import math

import numpy as np
import pytest

from rl_jax.core import binding
from rl_jax.rewards import compose

NAN, INF = float("nan"), float("inf")


def terms(**values):
    return {name: np.asarray(value, np.float32) for name, value in values.items()}


def bits(array):
    assert array.dtype == np.float32
    return array.view(np.uint32).tolist()


def test_one_term_of_weight_1_is_itself_bit_for_bit():
    odd = np.array([0.1, -0.0, 0.0, 1e-45, -1e-38, 3.4e38, INF, -INF, NAN, 1 / 3], np.float32)
    assert bits(compose.weighted_sum({"task": odd}, {"task": 1.0})) == bits(odd)
    others = {"task": odd, "shown": np.full(10, NAN, np.float32), "zero": odd}
    assert bits(compose.weighted_sum(others, {"task": 1.0, "zero": 0.0})) == bits(odd)


def test_weighted_sum_against_a_loop():
    rng = np.random.default_rng(0)
    given = {name: rng.normal(size=7).astype(np.float32) for name in "abc"}
    weights = {"a": 0.5, "b": -2.0, "c": 3.0}
    expected = [sum(weights[k] * float(given[k][row]) for k in given) for row in range(7)]
    np.testing.assert_allclose(compose.weighted_sum(given, weights), expected, rtol=1e-5)
    np.testing.assert_array_equal(compose.weighted_sum(given, {}), np.zeros(7, np.float32))


@pytest.mark.parametrize(
    ("fn", "keywords", "expected"),
    [
        # correct 1, 0, 1; style .5, .5, nan
        ("gate", dict(by="correct"), [1.5, 0.0, NAN]),
        ("gate", dict(by="style", threshold=0.5, gated=("correct",)), [1.5, 0.5, NAN]),
        ("veto", dict(by=("correct",)), [1.5, 0.0, NAN]),
        ("veto", dict(by=("correct", "style"), threshold=0.1, value=-1.0), [1.5, -1.0, -1.0]),
        ("veto", dict(by=()), [1.5, 0.5, NAN]),
        ("product", {}, [0.5, 0.0, NAN]),
        ("clip", dict(low=0.6, high=1.2), [1.2, 0.6, NAN]),
        ("interactions", dict(pairs=(("correct", "style", 2.0),)), [2.5, 0.5, NAN]),
    ],
)
def test_gates_vetoes_products_and_clips(fn, keywords, expected):
    given = terms(correct=[1, 0, 1], style=[0.5, 0.5, NAN])
    got = getattr(compose, fn)(given, {"correct": 1.0, "style": 1.0}, **keywords)
    np.testing.assert_array_equal(got, np.asarray(expected, np.float32))
    assert got.dtype == np.float32


def test_a_closed_gate_hides_a_nan_and_a_gate_may_have_no_weight():
    given = terms(correct=[0, 1], style=[NAN, 2.0])
    got = compose.gate(given, {"style": 1.0}, by="correct")
    np.testing.assert_array_equal(got, [0.0, 2.0])
    np.testing.assert_array_equal(compose.gate(terms(c=[NAN], s=[1]), {"s": 1.0}, by="c"), [0.0])


@pytest.mark.parametrize(
    ("values", "expected"),
    [((4, 9), 6), ((-4, 9), -6), ((-4, -9), -6), ((5,), 5), ((-5,), -5), ((0, 9), 0), ((2, 4, 8), 4)],
)
def test_signed_geometric_mean_of_lucy_skg(values, expected):
    given = terms(**{f"r{i}": [value] for i, value in enumerate(values)})
    got = compose.signed_geometric_mean(given, dict.fromkeys(given, 1.0))
    np.testing.assert_allclose(got, [expected], rtol=1e-7)
    np.testing.assert_array_equal(got, compose.signed_geometric_mean(given, dict.fromkeys(given, 3.0)))


def test_a_weight_of_the_geometric_mean_is_an_exponent():
    got = compose.signed_geometric_mean(terms(a=[2.0], b=[16.0]), {"a": 2.0, "b": 1.0})
    np.testing.assert_allclose(got, [(2.0**2 * 16.0) ** (1 / 3)], rtol=1e-6)


def test_saturation_has_slope_1_at_0_a_bound_and_leaves_negatives():
    given = terms(long=[-2.0, 0.0, 1e-3, 1.0, 100.0], right=[1.0] * 5)
    got = compose.saturation(given, {"long": 1.0}, scale={"long": 2.0})
    np.testing.assert_allclose(got, [-2.0, 0.0, 1e-3, 2 * (1 - math.exp(-0.5)), 2.0], rtol=1e-3)
    assert got.max() <= 2.0
    both = compose.saturation(given, {"right": 1.0}, scale=2.0)
    np.testing.assert_allclose(both, [2 * (1 - math.exp(-0.5))] * 5, rtol=1e-6)


def test_compositions_nest():
    given = terms(safe=[1, 0], long=[1e6, 1e6])
    got = compose.clip(
        given, {"long": 1.0}, high=1.5, of=dict(fn="veto", by=("safe",), of=dict(fn="saturation", scale=2.0))
    )
    np.testing.assert_array_equal(got, [1.5, 0.0])
    with pytest.raises(ValueError, match="by_source.*needs sources.*outermost"):
        compose.clip(given, {"long": 1.0}, of=dict(fn="by_source", table={}))


def test_each_source_has_its_weights_and_unlisted_ones_the_common_ones():
    given = terms(rule=[1, 2, 3, 4], judge=[10, 20, NAN, 40])
    fn = binding.bind(dict(fn="by_source", table={"math": {"rule": 2.0}, "chat": {"judge": 1.0}}), compose)
    assert binding.needs(fn) == {"sources"}
    got = binding.supply(fn, {"sources": ["math", "chat", "math", "other"]})(given, {"rule": 1.0, "judge": 0.1})
    np.testing.assert_allclose(got, [2.0, 20.0, 6.0, 8.0])
    one = binding.bind(dict(fn="by_source", table={"math": {"rule": 2.0}}, of=dict(fn="clip", high=3.0)), compose)
    np.testing.assert_allclose(one(given, {}, sources=["math"] * 4), [2.0, 3.0, 3.0, 3.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: compose.weighted_sum({}, {}), "no reward term to compose"),
        (lambda t: compose.weighted_sum(t, {"speling": 1.0}), "called speling; terms: a, b"),
        (lambda t: compose.weighted_sum(t | terms(c=[1]), {}), r"shape \[B\]"),
        (lambda t: compose.weighted_sum(terms(c=[[1]]), {}), r"shape \[B\]"),
        (lambda t: compose.gate(t, {}, by="x"), "called x"),
        (lambda t: compose.veto(t, {}, by=("a", "x")), "called x"),
        (lambda t: compose.product(t, {}), "no reward term has a weight"),
        (lambda t: compose.signed_geometric_mean(t, {"a": -1.0}), "negative weight: a"),
        (lambda t: compose.saturation(t, {}, scale=0.0), "must be above 0"),
        (lambda t: compose.clip(t, {}, low=1.0, high=0.0), "low 1.0 is above high 0.0"),
        (lambda t: compose.by_source(t, {}, sources=["x"], table={}), "1 sources for 2 rows"),
        (lambda t: compose.by_source(t, {}, sources=["x"] * 2, table={"x": {"q": 1}}), "x: no reward term is called q"),
        (lambda t: compose.clip(t, {}, of="clop"), "no function 'clop'"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(terms(a=[1, 2], b=[3, 4]))
