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
    assert stats.bootstrap_mean([0.1] * 7) == (0.1, 0.1, 0.1)


def test_differences_that_rounding_alone_tells_apart_are_equal():
    """.9 - .8 is not .8 - .7 in float64; float32 values that differ in their last bit do differ."""
    tenths = np.arange(10, 1, -1) / 10
    assert np.ptp(tenths[:-1] - tenths[1:]) > 0.0 and stats.all_equal(tenths[:-1], tenths[1:])
    interval = stats.paired_difference(tenths[:-1], tenths[1:])
    assert interval.low == interval.high == interval.mean and stats.judge(interval, at_least=0.05) == stats.UNDECIDED
    assert stats.all_equal([0.3, 0.1 + 0.2]) and not stats.all_equal([0.3, 0.3 + 1e-9])
    assert not stats.all_equal(np.float32([0.3, np.nextafter(np.float32(0.3), np.float32(1))]))
    assert not stats.all_equal([1e-15, 2e-15]) and stats.all_equal([1.0 + 1e-15, 2.0], [1.0, 2.0])


@pytest.mark.parametrize(("count", "n"), [(0, 2), (2, 2), (9, 10), (10, 10), (3, 40)])
def test_a_share_has_the_exact_interval(count, n):
    theirs = scipy.stats.binomtest(count, n).proportion_ci(0.9, method="exact")
    ours = stats.bootstrap_mean([1.0] * count + [0.0] * (n - count), confidence=0.9, within=(0, 1))
    assert ours == pytest.approx((count / n, theirs.low, theirs.high))


@pytest.mark.parametrize(("both", "more", "fewer"), [(0.2, 0.7, 0.1), (0.5, 0.0, 0.1), (0.0, 1.0, 0.0)])
def test_the_difference_of_two_shares_is_held_as_often_as_it_says(both, more, fewer):
    """Exactly, over all outcomes of ten pairs; resamples give [0, 0] as soon as no pair differs."""
    held, n = 0.0, 10
    for up in range(n + 1):
        for down in range(n + 1 - up):
            larger = np.repeat([1.0, 0.0, 1.0], [up, down, n - up - down])
            smaller = np.repeat([0.0, 1.0, 1.0], [up, down, n - up - down])
            interval = stats.paired_difference(larger, smaller, within=(0.0, 1.0))
            chance = scipy.stats.multinomial.pmf([up, down, n - up - down], n, [more, fewer, 1.0 - more - fewer])
            held += chance * (interval.low <= more - fewer <= interval.high)
    assert held >= 0.95


def test_differences_of_counts_are_no_shares():
    """0 or 1 as they are, they could have been below 0: a share's interval never is."""
    found = stats.paired_difference([5.0, 3.0, 4.0, 2.0], [4.0, 3.0, 4.0, 2.0])
    assert found.low < -0.3 and stats.bootstrap_mean([1.0, 0.0, 0.0, 0.0], within=(0.0, 1.0)).low > 0.0


def test_only_a_range_makes_a_share_of_zeros_and_ones():
    """A ratio of 1 for every seed has no known spread, as one of .999 has not."""
    for ratio in (0.999, 1.0):
        assert stats.bootstrap_mean([ratio] * 5) == (ratio, ratio, ratio)
    found = stats.paired_difference([1.0] * 5, [0.0] * 5)
    assert found.low == found.high and stats.judge(found, at_least=0.5) == stats.UNDECIDED
    assert stats.bootstrap_mean([1.0, 0.0, 0.0, 0.0]).low < 0.0, "Student's, as for any four values"


def test_equal_values_of_a_known_range_have_the_interval_of_a_share():
    low, high = scipy.stats.binomtest(0, 10).proportion_ci(0.95, method="exact")
    found = stats.bootstrap_mean([3.0] * 10, within=(1.0, 11.0))
    assert found == pytest.approx((3.0, 3.0 - 2.0 * high, 3.0 + 8.0 * high))
    found = stats.paired_difference([3.0] * 10, [2.0] * 10, within=(0.0, 5.0))
    assert found == pytest.approx((1.0, 1.0 - 6.0 * high, 1.0 + 4.0 * high)) and low == 0.0


def test_a_wider_interval_for_many_statements_is_bonferronis():
    values = np.random.default_rng(1).normal(size=12)
    half = values.std(ddof=1) / np.sqrt(12)
    of_one = stats.Interval(0.5, 0.5 - half * scipy.stats.t.ppf(0.975, 11), 0.5 + half * scipy.stats.t.ppf(0.975, 11))
    wide = half * scipy.stats.t.ppf(1 - 0.025 / 4, 11)
    assert stats.widened(of_one, 12, 4) == pytest.approx((0.5, 0.5 - wide, 0.5 + wide))
    assert stats.widened(of_one, 12, 1) == pytest.approx(of_one)


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
        ((0.2, 0.2, 0.2), dict(at_least=0.1), "undecided"),  # equal values say nothing of the others
        ((0.2, 0.2, 0.2), dict(at_least=0.3), "undecided"),
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
