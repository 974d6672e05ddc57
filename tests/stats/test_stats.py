"""Intervals against scipy, Student's t and their own promise (the coverage); verdicts on all sides of a claim."""

import numpy as np
import pytest
import scipy.stats

from rl_jax import stats
from rl_jax.stats import Interval


def test_many_values_get_scipys_percentile_interval():
    values = np.random.default_rng(0).exponential(size=400)
    ours = stats.bootstrap_mean(values)
    theirs = scipy.stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, rng=1)
    np.testing.assert_allclose(ours[1:], tuple(theirs.confidence_interval), rtol=5e-3)
    assert ours.mean == pytest.approx(values.mean()) and ours.high - ours.mean > 1.02 * (ours.mean - ours.low)


@pytest.mark.parametrize("n", [8, 20])
def test_values_like_a_normal_sample_get_students_interval(n):
    values = 3.0 + 2.0 * scipy.stats.norm.ppf((np.arange(n) + 0.5) / n)
    ours = stats.bootstrap_mean(values, resamples=100_000)
    theirs = scipy.stats.t.interval(0.95, n - 1, loc=values.mean(), scale=values.std(ddof=1) / np.sqrt(n))
    np.testing.assert_allclose(ours[1:], theirs, atol=0.12)
    plain = scipy.stats.bootstrap((values,), np.mean, method="percentile", rng=1).confidence_interval
    assert ours.high - ours.low > 1.05 * (plain.high - plain.low)


@pytest.mark.parametrize("n", [3, 5, 10])
def test_the_interval_holds_the_mean_as_often_as_it_says(n):
    rng, held = np.random.default_rng(3), 0
    for key in range(400):
        interval = stats.bootstrap_mean(rng.normal(size=n), key=key, resamples=2_000)
        held += interval.low <= 0.0 <= interval.high
    assert 0.925 <= held / 400 <= 0.99  # resamples alone: at most 0.75 at n = 3


def test_confidence_widens_and_the_key_repeats():
    values = [0.1, 0.4, 0.3, 0.9, 0.2, 0.5, 0.6, 0.35, 0.15]
    narrow, wide = (stats.bootstrap_mean(values, confidence=c) for c in (0.8, 0.95))
    assert wide.low < narrow.low < narrow.mean < narrow.high < wide.high
    assert stats.bootstrap_mean(values) == stats.bootstrap_mean(values, key=0) != stats.bootstrap_mean(values, key=1)


def test_equal_values_have_no_width():
    assert stats.bootstrap_mean([0.1] * 7) == pytest.approx((0.1, 0.1, 0.1))
    interval = stats.bootstrap_mean([0.1] * 7)
    assert interval.low <= interval.mean <= interval.high


@pytest.mark.parametrize("values", [[1.0], [], [[1.0, 2.0]]])
def test_one_value_has_no_interval(values):
    with pytest.raises(ValueError, match="at least two"):
        stats.bootstrap_mean(values)


def test_nan_has_no_interval():
    with pytest.raises(ValueError, match="not finite.*nan"):
        stats.bootstrap_mean([1.0, float("nan")])


def test_what_seeds_share_cancels():
    shared = np.random.default_rng(0).normal(size=10) * 100.0
    noise = np.random.default_rng(1).normal(size=10) * 0.1
    interval = stats.paired_difference(shared + 1.0 + noise, shared)
    assert 0.8 < interval.low < interval.mean < interval.high < 1.2
    with pytest.raises(ValueError, match=r"\(10,\) and \(9,\)"):
        stats.paired_difference(shared, shared[1:])


@pytest.mark.parametrize(
    ("interval", "bounds", "said"),
    [
        ((0.2, 0.1, 0.3), dict(at_least=0.0), "reproduced"),
        ((0.2, -0.1, 0.5), dict(at_least=0.0), "undecided"),
        ((-0.2, -0.3, -0.1), dict(at_least=0.0), "not reproduced"),
        ((0.0, 0.0, 0.0), dict(at_least=0.0), "undecided"),  # no difference is no lead
        ((0.2, 0.1, 0.3), dict(at_most=0.35), "reproduced"),
        ((0.2, 0.1, 0.3), dict(at_most=0.25), "undecided"),
        ((0.2, 0.1, 0.3), dict(at_most=0.05), "not reproduced"),
        ((0.2, 0.1, 0.3), dict(at_least=0.0, at_most=0.4), "reproduced"),
        ((0.2, 0.1, 0.3), dict(at_least=0.15, at_most=0.4), "undecided"),
        ((0.2, 0.1, 0.3), dict(at_least=0.4, at_most=0.5), "not reproduced"),
    ],
)
def test_judge(interval, bounds, said):
    assert stats.judge(Interval(*interval), **bounds) == said


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (["reproduced", "reproduced"], "reproduced"),
        (["reproduced", "undecided"], "undecided"),
        (["undecided", "not reproduced", "reproduced"], "not reproduced"),
    ],
)
def test_judge_all(verdicts, said):
    assert stats.judge_all(iter(verdicts)) == said


def test_nothing_to_judge():
    with pytest.raises(ValueError, match="without a statement"):
        stats.judge_all([])
