"""The mean over seeds with its interval, whether that supports a claim, and how many seeds would."""

import bisect
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats as distributions

FEW = 8  # with fewer values, their range is too narrow for an interval of the mean
ROUNDING = 1e-12  # of float64 arithmetic on values of size 1; noise of float32 is larger, and is no rounding
REPRODUCED, NOT_REPRODUCED, UNDECIDED = "reproduced", "not reproduced", "undecided"


class Interval(NamedTuple):
    """A mean and the interval that contains the true mean with the given confidence, in the unit of the values.

    Attributes:
      mean: float, low <= mean <= high.
      low: float.
      high: float.
    """

    mean: float
    low: float
    high: float


def bootstrap_mean(
    values: Sequence[float],
    *,
    key: int = 0,
    confidence: float = 0.95,
    resamples: int = 20_000,
    within: tuple[float, float] | None = None,
) -> Interval:
    """The mean of n independent values with its expanded percentile bootstrap interval.

    The plain percentile interval is too narrow for few values (at n = 5 it contains the true mean 83 times in 100
    instead of 95): it lacks the factor sqrt(n / (n - 1)) and uses the normal quantile instead of Student's. Here its
    tails are Phi(-t sqrt(n / (n - 1))), with t the quantile of Student's distribution with n - 1 degrees of freedom, so
    that normal values get their t interval and skewed ones keep the bootstrap's asymmetry. A resample's mean lies
    within the range of the values, which is too narrow for few of them (at n = 3 it contains the true mean 75 times in
    100): below 8 values the interval is widened to contain Student's.

    Values that are all 0 or 1, and that `within` says can be no others than from 0 to 1, are a share: their interval is
    Clopper and Pearson's, which is exact (resamples of ten values contain a share of .9 64 times in 100). A ratio of
    two speeds may be 1 for every seed, too, but is no share. Other values that are all equal (`all_equal`) say nothing
    about their spread. Without `within` their interval has no width, and `judge` decides nothing by it; with it, the
    share of values that may differ is at most 1 - q, q = ((1 - confidence) / 2)^(1/n), so that the mean is between q
    value + (1 - q) within[0] and q value + (1 - q) within[1].
    Source: Hesterberg, arXiv 1411.5279 (the expanded percentile interval); Clopper and Pearson, Biometrika 26, 1934.

    Args:
      values: float [n], n >= 2, finite.
      key: of the resampling.
      confidence: of the interval.
      resamples: number of resamples.
      within: (low, high), the range that no value can leave; used if all values are equal, and for shares.

    Raises:
      ValueError: if n < 2 or a value is not finite.
    """
    values = _checked(values)
    if within == (0.0, 1.0) and _binary(values):
        return _share(int(values.sum()), len(values), confidence)
    return _expanded(values, all_equal(values), key, confidence, resamples, within)


def all_equal(*sides: Sequence[float]) -> bool:
    """Whether the values of one side, or the differences of two, are equal but for the rounding of float64.

    max - min <= 1e-12 max |value|, with the values before they are subtracted: .9 - .8 and .8 - .7 are one difference.

    Args:
      *sides: one or two of float [n].
    """
    sides = [np.asarray(side, np.float64) for side in sides]
    values = sides[0] - sides[1] if len(sides) == 2 else sides[0]
    return bool(np.ptp(values) <= ROUNDING * max(np.abs(side).max() for side in sides))


def _checked(values: Sequence[float]) -> np.ndarray:
    values = np.asarray(values, np.float64)
    if values.ndim != 1 or len(values) < 2:
        raise ValueError(f"an interval needs a 1-D array of at least two values, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"values that are not finite have no interval: {values.tolist()}")
    return values


def _expanded(
    values: np.ndarray, equal: bool, key: int, confidence: float, resamples: int, within: tuple[float, float] | None
) -> Interval:
    """The expanded percentile interval, or that of equal values."""
    n = len(values)
    if equal:
        value, kept = float(values[0]), ((1.0 - confidence) / 2.0) ** (1.0 / n)
        if within is None:
            return Interval(value, value, value)
        return Interval(value, *(kept * value + (1.0 - kept) * float(end) for end in within))
    quantile = distributions.t.ppf((1.0 + confidence) / 2.0, n - 1) * np.sqrt(n / (n - 1))
    tail = distributions.norm.cdf(-quantile)
    drawn = np.random.default_rng(key).integers(n, size=(resamples, n))
    low, high = np.quantile(values[drawn].mean(axis=1), [tail, 1.0 - tail])
    mean = float(values.mean())
    if n < FEW:
        half = distributions.t.ppf((1.0 + confidence) / 2.0, n - 1) * values.std(ddof=1) / np.sqrt(n)
        low, high = min(low, mean - half), max(high, mean + half)
    return Interval(mean, min(float(low), mean), max(float(high), mean))


def _binary(values: np.ndarray) -> bool:
    return bool(((values == 0.0) | (values == 1.0)).all())


def _share(count: int, n: int, confidence: float) -> Interval:
    """count / n with Clopper and Pearson's interval."""
    tail = (1.0 - confidence) / 2.0
    low = distributions.beta.ppf(tail, count, n - count + 1) if count else 0.0
    high = distributions.beta.ppf(1.0 - tail, count + 1, n - count) if count < n else 1.0
    return Interval(count / n, float(low), float(high))


def paired_difference(
    larger: Sequence[float],
    smaller: Sequence[float],
    *,
    key: int = 0,
    confidence: float = 0.95,
    resamples: int = 20_000,
    within: tuple[float, float] | None = None,
) -> Interval:
    """mean(larger - smaller) over shared seeds, seed by seed, with its interval.

    What the seeds share (data, reference, initial policy) cancels. If all values are 0 or 1 and `within` is (0, 1), the
    difference is the share of seeds with more less the share of those with fewer: its ends are those of their exact
    intervals, each at (1 + confidence) / 2, so that both contain theirs with `confidence` at least.

    Args:
      larger: float [n], one per seed.
      smaller: float [n], the same seeds.
      key: of the resampling.
      confidence: of the interval.
      resamples: number of resamples.
      within: (low, high), the range that no value can leave; used if all differences are equal, and for
        shares.

    Raises:
      ValueError: if the lengths differ, n < 2 or a value is not finite.
    """
    larger, smaller = np.asarray(larger, np.float64), np.asarray(smaller, np.float64)
    if larger.shape != smaller.shape:
        raise ValueError(f"pairs need the same seeds on both sides, got shapes {larger.shape} and {smaller.shape}")
    differences = _checked(larger - smaller)
    if within == (0.0, 1.0) and _binary(larger) and _binary(smaller):
        joint = (1.0 + confidence) / 2.0
        more, fewer = (_share(int((differences == sign).sum()), len(differences), joint) for sign in (1.0, -1.0))
        return Interval(float(differences.mean()), more.low - fewer.high, more.high - fewer.low)
    ends = within and (within[0] - within[1], within[1] - within[0])
    return _expanded(differences, all_equal(larger, smaller), key, confidence, resamples, ends)


def judge(interval: Interval, *, at_least: float = -np.inf, at_most: float = np.inf) -> str:
    """Whether the claim "the mean is in [at_least, at_most]" holds.

    "reproduced" if the whole interval is inside, "not reproduced" if all of it is outside, else "undecided". An
    interval that only touches a bound has not crossed it, and one without width, of equal values, decides nothing.
    """
    if interval.low == interval.high:
        return UNDECIDED
    if at_least < interval.low and interval.high < at_most:
        return REPRODUCED
    return NOT_REPRODUCED if interval.high < at_least or at_most < interval.low else UNDECIDED


def judge_all(verdicts: Iterable[str]) -> str:
    """The verdict on a claim with several statements: all of them have to hold, and one that does not refutes it.

    For "reproduced" no correction for their number is needed: wrongly accepting all of them is no more likely than
    wrongly accepting the weakest one. For "not reproduced" there is: any of m may be wrongly refuted. So judge a
    statement as not reproduced only by the interval of `widened`.

    Raises:
      ValueError: if there are none.
    """
    verdicts = list(verdicts)
    if not verdicts:
        raise ValueError("a claim without a statement cannot be judged")
    if NOT_REPRODUCED in verdicts:
        return NOT_REPRODUCED
    return UNDECIDED if UNDECIDED in verdicts else REPRODUCED


def widened(interval: Interval, n: int, statements: int, *, confidence: float = 0.95) -> Interval:
    """An interval's ends moved out for one of m statements, so that all m contain their means with `confidence`.

        end_m = mean + (end - mean) t_{n-1}(1 - (1 - confidence) / (2 m)) / t_{n-1}(1 - (1 - confidence) / 2)

    Bonferroni's correction, with the ratio of Student's quantiles t_{n-1}. It needs no values, so that stored intervals
    can be judged by it. Holm's correction refutes a claim, by one statement or more, in the same cases.

    Args:
      interval: of a mean of n values, with `confidence`.
      n: number of values, at least 2.
      statements: m, at least 1.
      confidence: of the interval.
    """
    tail = (1.0 - confidence) / 2.0
    ratio = float(distributions.t.isf(tail / statements, n - 1) / distributions.t.isf(tail, n - 1))
    return Interval(interval.mean, *(interval.mean + (end - interval.mean) * ratio for end in interval[1:]))


def seeds_for_power(
    differences: Sequence[float],
    *,
    bound: float = 0.0,
    power: float = 0.8,
    confidence: float = 0.95,
    limit: int = 10_000,
) -> int | None:
    """The total number of seeds with which Student's interval of the mean clears the bound with probability `power`.

    The smallest m with P(T > t_{m-1}((1 + confidence) / 2)) >= power. T has Student's noncentral distribution with m -
    1 degrees of freedom and noncentrality |mean - bound| sqrt(m) / std, with the observed mean and std. This takes the
    observed effect for the true one, so from few seeds the answer is rough.

    Args:
      differences: float [n], n >= 2.
      bound: what the interval has to clear.
      power: probability of clearing it.
      confidence: of the interval.
      limit: the most seeds to consider.

    Returns:
      None if more than `limit` are needed, as for a mean on the bound.
    """
    differences = np.asarray(differences, np.float64)
    effect, spread = abs(differences.mean() - bound), differences.std(ddof=1)
    if spread == 0.0:
        return 2 if effect > 0.0 else None

    def enough(m: int) -> bool:
        critical = distributions.t.ppf((1.0 + confidence) / 2.0, m - 1)
        return distributions.nct.sf(critical, m - 1, effect / spread * np.sqrt(m)) >= power

    if not enough(limit):
        return None
    return bisect.bisect_left(range(limit), True, lo=2, key=enough)
