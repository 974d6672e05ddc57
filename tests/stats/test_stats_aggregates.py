"""Aggregates against scipy, rliable 1.2.0 (run once; what it said is pinned here) and published score tables."""

import numpy as np
import pytest
import scipy.stats

from configs.papers.iqm_few_seeds import BASELINES
from experiments.studies.statistics import score_table
from rl_jax import stats
from tests.paths import shared_data

# Two agents, 5 and 4 runs of 6 tasks; what rliable 1.2.0 (numpy 2.4, arch 7.2, pandas 2.3) says of them.
X = np.array(
    [
        [0.83, 1.62, 0.18, 0.00, 1.81, 0.18],
        [0.13, 0.82, 0.05, 0.00, 0.53, 3.91],
        [0.53, 0.07, 0.08, 0.00, 0.05, 2.95],
        [2.39, 1.38, 0.59, 2.78, 0.74, 0.05],
        [0.29, 0.72, 0.88, 0.05, 0.11, 0.02],
    ]
)
Y = np.array(
    [
        [0.15, 0.27, 1.22, 2.76, 3.93, 0.08],
        [4.71, 0.12, 1.13, 0.39, 3.29, 0.78],
        [1.77, 0.06, 1.20, 0.71, 0.34, 1.33],
        [0.70, 1.78, 0.07, 2.37, 1.07, 0.68],
    ]
)
THRESHOLDS = [0.0, 0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("statistic", "value", "interval"),
    [  # the interval: 50,000 resamples of rliable
        (stats.iqm, 0.420625, (0.216875, 0.830625)),
        (stats.mean, 0.791333, (0.467333, 1.148667)),
        (stats.median, 0.741, (0.397, 1.106)),
    ],
)
def test_rliables_aggregates_and_their_intervals(statistic, value, interval):
    found = stats.stratified_bootstrap(statistic, X, resamples=20_000)
    assert found.value == pytest.approx(value, abs=1e-6)
    np.testing.assert_allclose(found[1:], interval, atol=0.012)
    assert found == stats.stratified_bootstrap(statistic, X, resamples=20_000)
    assert found != stats.stratified_bootstrap(statistic, X, resamples=20_000, key=1)


def test_rliables_profiles_and_probability_of_improvement():
    assert stats.optimality_gap(X) == pytest.approx(0.5366666667)
    np.testing.assert_allclose(stats.performance_profile(X, THRESHOLDS), [0.9, 0.5, 7 / 30, 4 / 30])  # 0 is not > 0
    np.testing.assert_allclose(stats.average_performance_profile(X, THRESHOLDS), [1.0, 5 / 6, 1 / 6, 0.0])
    found = stats.stratified_bootstrap(lambda x: stats.performance_profile(x, THRESHOLDS), X, resamples=2_000)
    np.testing.assert_allclose(found.low, [0.8333, 0.3333, 0.1, 0.0333], atol=0.034)
    np.testing.assert_allclose(found.high, [0.9667, 0.6667, 0.3667, 0.2333], atol=0.034)
    found = stats.stratified_bootstrap(stats.probability_of_improvement, X, Y)
    np.testing.assert_allclose(found, [0.341667, 0.191667, 0.491667], atol=0.01)
    assert stats.probability_of_improvement(Y, X) == pytest.approx(1 - 0.341667, abs=1e-6)
    assert stats.probability_of_improvement(X, X) == 0.5


def test_the_atlas_table():
    table = np.array([[0, 0.5], [0.2, 0.7], [0.4, 0.9], [1.2, 1.1]])
    assert [float(f(table)) for f in (stats.iqm, stats.mean, stats.median)] == pytest.approx([0.625] * 3)
    assert stats.optimality_gap(table) == pytest.approx(0.4125)
    assert stats.optimality_gap(table, 2.0) == pytest.approx(2.0 - 0.625)
    assert stats.probability_of_improvement([[1.0], [2.0], [3.0]], [[2.0], [2.0], [0.0]]) == pytest.approx(2 / 3)
    assert stats.iqm([[0.1], [0.2], [0.9]]) == pytest.approx(0.4)  # fewer than four: nothing to drop


@pytest.mark.parametrize("shape", [(3, 1), (5, 1), (3, 7), (10, 26)])
def test_scipys_trimmed_mean_and_u(shape):
    rng = np.random.default_rng(sum(shape))
    x, y = rng.integers(0, 6, size=shape), rng.integers(0, 6, size=(shape[0] + 1, shape[1]))
    assert stats.iqm(x) == pytest.approx(scipy.stats.trim_mean(x, 0.25, axis=None))
    shares = [scipy.stats.mannwhitneyu(a, b).statistic / (len(a) * len(b)) for a, b in zip(x.T, y.T, strict=True)]
    assert stats.probability_of_improvement(x, y) == pytest.approx(np.mean(shares))


def test_a_batch_of_tables_is_each_of_them():
    tables = np.random.default_rng(0).normal(size=(3, 4, 5, 2))
    for statistic in (stats.mean, stats.median, stats.iqm, stats.optimality_gap):
        expected = [[statistic(table) for table in row] for row in tables]
        np.testing.assert_allclose(statistic(tables), expected)
    assert stats.performance_profile(tables, THRESHOLDS).shape == (3, 4, 4)


def test_runs_are_drawn_within_their_task():
    """Tasks differ by far and runs do not: drawn across tasks, the interval of the mean would be wide."""
    table = np.array([[0.0, 100.0], [0.1, 100.1], [0.2, 100.2]])
    found = stats.stratified_bootstrap(stats.mean, table)
    assert 50.0 <= found.low < found.value < found.high <= 50.2
    one = stats.stratified_bootstrap(stats.mean, np.random.default_rng(0).exponential(size=(400, 1)))
    values = np.random.default_rng(0).exponential(size=400)
    theirs = scipy.stats.bootstrap((values,), np.mean, method="percentile", rng=1).confidence_interval
    np.testing.assert_allclose(one[1:], theirs, rtol=8e-3)


def test_the_interval_of_many_tasks_holds_the_iqm_as_often_as_it_says():
    """10 tasks of 5 runs, of heavy tails: the percentile interval is near what it says, of one task it is not."""
    rng, held = np.random.default_rng(0), {10: 0, 1: 0}
    for tasks in held:
        true = stats.mean if tasks == 1 else stats.iqm
        aim = float(true(np.random.default_rng(1).standard_t(3, size=(200_000, 1)))) if tasks == 10 else 0.0
        for key in range(200):
            found = stats.stratified_bootstrap(true, rng.standard_t(3, size=(5, tasks)), key=key, resamples=400)
            held[tasks] += found.low <= aim <= found.high
    assert 0.87 <= held[10] / 200 <= 1.0 and held[1] / 200 < 0.87


def test_a_curve_is_its_checkpoints():
    curves = np.random.default_rng(0).normal(size=(5, 3, 4)) + np.arange(4.0)[None, None]
    found = stats.sample_efficiency(curves, resamples=4_000)
    for t in range(4):
        alone = stats.stratified_bootstrap(stats.iqm, curves[:, :, t], resamples=4_000, key=t)
        assert found.value[t] == pytest.approx(alone.value)
        np.testing.assert_allclose([found.low[t], found.high[t]], alone[1:], atol=0.08)
    same = np.repeat(curves[:, :, :1], 2, axis=2)  # a run is drawn with all its checkpoints
    assert np.ptp(stats.sample_efficiency(same, resamples=50).low) == 0.0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: stats.iqm([1.0, 2.0]), r"\[\.\.\., runs, tasks\]"),
        (lambda: stats.mean([[1.0, np.nan]]), "a score is nan"),
        (lambda: stats.median(np.zeros((0, 3))), "runs, tasks"),
        (lambda: stats.probability_of_improvement(X, Y[:, 1:]), "scores of 6 and of 5"),
        (lambda: stats.stratified_bootstrap(stats.iqm, X[:1]), "at least two runs"),
        (lambda: stats.sample_efficiency(X), "runs, tasks, checkpoints"),
        (lambda: stats.holm([0.1, 1.2]), "p-values in"),
        (lambda: stats.benjamini_hochberg([]), "p-values in"),
    ],
)
def test_what_cannot_be_is_an_error(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_corrections_on_a_worked_table():
    p = [0.01, 0.04, 0.03, 0.005]
    np.testing.assert_allclose(stats.holm(p), [0.03, 0.06, 0.06, 0.02])  # 3 x .01, 2 x .03, no less than that, 4 x .005
    np.testing.assert_allclose(stats.benjamini_hochberg(p), [0.02, 0.04, 0.04, 0.02])
    assert stats.holm([0.9, 0.8]).tolist() == [1.0, 1.0]


def test_holm_keeps_the_family_and_benjamini_hochberg_the_share():
    rng, family, shares = np.random.default_rng(0), 0, []
    for _ in range(400):
        z = np.concatenate([rng.normal(size=10), rng.normal(size=10) + 3.0])
        p = scipy.stats.norm.sf(z)
        family += bool((stats.holm(p)[:10] <= 0.1).any())
        found = stats.benjamini_hochberg(p) <= 0.1
        shares.append(found[:10].sum() / max(found.sum(), 1))
    assert family / 400 < 0.1 + 0.03 and np.mean(shares) < 0.1
    assert np.mean(shares) > 0.02  # and it does reject


def last_scores(name: str, other: str) -> np.ndarray:
    """[runs, tasks], normalised: what danijar/dreamerv3's plot.py plots last, with 50 bins."""
    paths = (shared_data(f"stats/{file}.json.gz") for file in (name, other))
    return score_table(*paths, BASELINES, 1 / 50)


DREAMER, PPO_ATARI = "atari100k-dreamerv3", "atari100k-ppo_fixhp"
PPG, PPO_PROCGEN = "procgen-ppg", "procgen-ppo_fixhp"


@pytest.mark.parametrize(
    ("name", "other", "runs", "published", "tolerance", "iqm"),
    [  # the mean, and the median where the tables of arXiv 2301.04104 have it
        (DREAMER, PPO_ATARI, 5, (1.25, 0.49), 5e-3, 0.52182),
        (PPG, PPO_PROCGEN, 3, (0.6489,), 5e-5, 0.66674),
        (PPO_PROCGEN, PPG, 5, (0.4280,), 5e-5, 0.43850),
        ("dmc_proprio-d4pg", "dmc_proprio-dmpo", 10, (), 0.0, 0.83709),
    ],
)
def test_published_score_tables(name, other, runs, published, tolerance, iqm):
    table = last_scores(name, other)
    assert len(table) == runs
    for statistic, value in zip((stats.mean, stats.median), published, strict=False):
        assert statistic(table) == pytest.approx(value, abs=tolerance)
    assert stats.iqm(table) == pytest.approx(iqm, abs=5e-5)
    assert stats.iqm(table) == pytest.approx(scipy.stats.trim_mean(table, 0.25, axis=None), abs=1e-12)


def test_real_agents_compared():
    """DreamerV3 is above PPO on nearly every game of Atari; on Procgen PPG is above PPO, by less."""
    dreamer, ppo = last_scores(DREAMER, PPO_ATARI), last_scores(PPO_ATARI, DREAMER)
    better = stats.stratified_bootstrap(stats.probability_of_improvement, dreamer, ppo, resamples=500)
    assert better.low > 0.8
    taus = np.linspace(0.0, 2.0, 5)
    assert (stats.performance_profile(dreamer, taus) >= stats.performance_profile(ppo, taus)).all()
    ppg, ppo = last_scores(PPG, PPO_PROCGEN), last_scores(PPO_PROCGEN, PPG)
    assert stats.stratified_bootstrap(stats.iqm, ppg).low > stats.stratified_bootstrap(stats.iqm, ppo).high
