"""rewards/benchmarks.py: against sums over all subsets, published code's numbers, and ranks written out."""

import itertools
import math

import numpy as np
import pytest

from rl_jax.rewards import benchmarks

RNG = np.random.default_rng(0)


def test_pair_accuracy_counts_ties_as_it_is_told():
    assert benchmarks.pair_accuracy([1.0, 0.0, 2.0], [0.0, 0.0, 3.0]) == pytest.approx(1 / 3)
    assert benchmarks.pair_accuracy([1.0, 0.0, 2.0], [0.0, 0.0, 3.0], ties=0.5) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="one length"):
        benchmarks.pair_accuracy([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="one length"):
        benchmarks.pair_accuracy([], [])


def test_calibration_error():
    probs = np.array([0.05, 0.1, 0.95, 1.0, 0.55])
    labels = np.array([0.0, 1.0, 1.0, 1.0, 0.0])
    # Bins (0, .1], (.9, 1] and (.5, .6]; the upper edge belongs to its bin.
    expected = (2 * abs(0.5 - 0.075) + 2 * abs(1.0 - 0.975) + 0.55) / 5
    assert benchmarks.calibration_error(probs, labels) == pytest.approx(expected)
    many = RNG.random(20_000)
    assert benchmarks.calibration_error(many, RNG.random(20_000) < many) < 0.02
    assert benchmarks.calibration_error(np.zeros(3), np.zeros(3)) == 0.0
    with pytest.raises(ValueError, match="in .0, 1., got values from"):
        benchmarks.calibration_error([1.5], [1.0])


def test_length_correlation():
    lengths = RNG.integers(1, 50, 40)
    noise = RNG.normal(size=40)
    expected = np.corrcoef(lengths + 9 * noise, lengths)[0, 1]
    assert benchmarks.length_correlation(lengths + 9 * noise, lengths) == pytest.approx(expected)
    assert benchmarks.length_correlation(np.ones(40), lengths) == 0.0


def test_area_under_curve_is_the_share_of_ordered_pairs():
    scores, labels = RNG.integers(0, 5, 30).astype(float), RNG.random(30) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[labels] for b in scores[~labels]]
    assert benchmarks.area_under_curve(scores, labels) == pytest.approx(np.mean(pairs))
    assert benchmarks.area_under_curve(np.ones(30), labels) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="30 right and 0 wrong"):
        benchmarks.area_under_curve(scores, np.ones(30))


# --- Published benchmarks --------------------------------------------------------------------------------------------


def official_mrr(chosen, rejected):
    """_calculate_MRR of RewardMATH's eval.py, its lines in their order."""
    scored = [(score, "rej") for score in rejected] + [(score, "cho") for score in chosen]
    ranked = sorted(scored, key=lambda x: (x[0], x[1]), reverse=True)
    return 1 / (1 + next(i for i, (_, label) in enumerate(ranked) if label == "cho"))


def test_reward_math():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        right, wrong = rng.integers(0, 6, 1 + seed % 2), rng.integers(0, 6, 9)
        found = benchmarks.reward_math(right, wrong)
        assert found["mrr"] == pytest.approx(official_mrr(list(right), list(wrong)))
        assert found["accuracy"] == float(min(right) > max(wrong))
        assert found["accuracy_ties"] == float(min(right) >= max(wrong))
    assert benchmarks.reward_math([1.0], np.ones(9)) == {"accuracy": 0.0, "accuracy_ties": 1.0, "mrr": 0.1}


def test_reward_bench_2():
    scores = np.array([[3.0, 1, 2, 0], [0.0, 0, 0, 0], [1.0, 2, 0, 0]])
    assert benchmarks.reward_bench_2(scores) == pytest.approx((1 + 1 / 4) / 3)  # "penalty for ties" of its code: 1 / k
    assert benchmarks.reward_bench_2([[2.0, 2, 1, 0], [1.0, 2, 2, 0]]) == 0.25


# Scores to two digits, and what process_single_model of rewardbench 0.1.4 makes of them.
TIES = [
    ([1.13], [-0.13, 0.64], [0.03, -0.16], [-0.64, 0.3]),
    ([1.95], [-0.7, -1.27], [1.81, 2.01], [-3.33, -1.22]),
    ([-0.25], [-0.73, -0.54], [-0.09, 0.12], [0.04, -1.13]),
    ([2.37], [-0.67, 0.35], [2.27, 2.03], [-1.74, -1.92]),
    ([0.54], [0.22, -1.01], [2.0, 2.0], [-0.46, -0.79]),
]


def test_reward_bench_ties_is_the_published_codes():
    assert benchmarks.reward_bench_ties(TIES) == pytest.approx(0.7201941169238728, abs=1e-12)
    assert benchmarks.reward_bench_ties([([0.0], [1.0], [0.0, 0.0], [1.0])]) == 0.0
    assert benchmarks.reward_bench_ties([([2.0], [1.0], [2.0, 2.0], [1.0])]) == pytest.approx(1.0)


# --- Best of n -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [1000, 3])
def test_best_of_n_is_the_mean_over_all_subsets(levels):
    """With ties in the proxy (3 levels) the choice among the best is at random."""
    proxy, gold = RNG.integers(0, levels, (4, 7)).astype(float), RNG.normal(size=(4, 7))
    for n, found in zip((1, 3, 7), benchmarks.best_of_n(proxy, gold, (1, 3, 7)), strict=True):
        golds, proxies = [], []
        for p, g in zip(proxy, gold, strict=True):
            for subset in itertools.combinations(range(7), n):
                best = max(p[list(subset)])
                golds.append(np.mean([g[i] for i in subset if p[i] == best]))
                proxies.append(best)
        assert found.proxy == pytest.approx(np.mean(proxies))
        # Exact where no two tie; else a run of ties shares its mean, which is the same as drawing among all of them.
        if levels > 100:
            assert found.gold == pytest.approx(np.mean(golds))
        else:
            assert found.gold == pytest.approx(np.mean(golds), abs=1e-9)
        assert found.kl == pytest.approx(math.log(n) - (n - 1) / n)


def test_best_of_one_is_the_mean_and_the_gold_reward_chooses_best():
    gold = RNG.normal(size=(3, 8))
    rows = benchmarks.best_of_n(gold, gold, (1, 2, 8))
    assert rows[0].gold == pytest.approx(gold.mean()) and rows[0].kl == 0.0
    assert rows[2].gold == pytest.approx(gold.max(axis=1).mean())
    assert rows[0].gold < rows[1].gold < rows[2].gold
    with pytest.raises(ValueError, match="1 to the number of samples"):
        benchmarks.best_of_n(gold, gold, (9,))


def test_the_kl_of_best_of_n_is_the_kl_of_a_uniform_policy():
    """Of a policy over many equally likely samples, from the definition: -> log n - (n - 1) / n."""
    samples, n = 4000, 4
    ranks = np.arange(1, samples + 1) / samples
    chosen = ranks**n - (ranks - 1 / samples) ** n
    assert float(np.sum(chosen * np.log(chosen * samples))) == pytest.approx(benchmarks.best_of_n_kl(n), abs=1e-3)


def test_rerank_accuracy():
    found = benchmarks.rerank_accuracy([[3.0, 1.0], [1.0, 1.0, 0.0], [2.0, 5.0]], [[1, 0], [1, 0, 0], [1, 0]])
    assert found["chosen"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert found["chance"] == pytest.approx((0.5 + 1 / 3 + 0.5) / 3) and found["oracle"] == 1.0
