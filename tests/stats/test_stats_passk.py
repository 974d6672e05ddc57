"""pass@k, pass^k and maj@k against every subset, listed; and on 8 real answers to each of 100 problems."""

import gzip
import itertools
import json
from collections import Counter

import numpy as np
import pytest

from rl_jax import stats
from tests.paths import shared_data


@pytest.mark.parametrize(("n", "c"), [(5, 0), (5, 1), (6, 3), (6, 6), (1, 1)])
def test_pass_at_k_is_the_mean_over_all_subsets(n, c):
    for k in range(1, n + 1):
        subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
        assert stats.pass_at_k(n, c, k) == pytest.approx(np.mean([any(subset) for subset in subsets]))


@pytest.mark.parametrize(("n", "c"), [(4, 3), (5, 0), (6, 3), (6, 6), (1, 1)])
def test_pass_hat_k_is_the_share_of_subsets_that_are_all_right(n, c):
    for k in range(1, n + 1):
        subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
        assert stats.pass_hat_k(n, c, k) == pytest.approx(np.mean([all(subset) for subset in subsets]))
    assert stats.pass_hat_k(4, 3, 2) == 0.5 and stats.pass_hat_k([4, 4], [4, 3], 4).tolist() == [1, 0]
    with pytest.raises(ValueError, match=r"pass\^3 of 1 correct ones of 2 samples: needs 1 <= k <= n"):
        stats.pass_hat_k(2, 1, 3)


def test_pass_at_k_of_many():
    found = stats.pass_at_k([8, 8, 200], [0, 4, 1], 4)
    np.testing.assert_allclose(found, [0.0, 1 - 1 / 70, 4 / 200])
    log_miss = sum(np.log1p(-10 / (10**6 - i)) for i in range(100))  # none of 10 in 100 draws of 10^6
    assert stats.pass_at_k(10**6, 10, 100) == pytest.approx(-np.expm1(log_miss), rel=1e-9)


def subset_by_subset(answers, correct, k, ties):
    worths = []
    for places in itertools.combinations(range(len(answers)), k):
        votes = Counter(answers[i] for i in places)
        label = {answers[i]: correct[i] for i in places}
        winners = [label[answer] for answer, count in votes.items() if count == max(votes.values())]
        worths.append({"random": np.mean(winners), "wrong": all(winners), "right": any(winners)}[ties])
    return np.mean(worths)


@pytest.mark.parametrize("ties", ["random", "wrong", "right"])
@pytest.mark.parametrize("seed", range(4))
def test_maj_at_k_is_the_mean_over_all_subsets(seed, ties):
    rng = np.random.default_rng(seed)
    answers = rng.integers(4, size=8).tolist()
    right = set(rng.permutation(4)[: 1 + seed % 2].tolist())  # two different right answers do not vote together
    correct = [answer in right for answer in answers]
    for k in range(1, 9):
        assert stats.maj_at_k(answers, correct, k, ties=ties) == pytest.approx(
            subset_by_subset(answers, correct, k, ties)
        )


def test_the_first_one_found_wins_is_a_random_tie_over_all_orders():
    answers, correct = ["a", "b", "b", "c", "a"], [True, False, False, False, True]
    first = []
    for order in itertools.permutations(range(5)):
        votes = Counter(answers[i] for i in order[:4])
        winner = votes.most_common(1)[0][0]  # the first one of the most frequent
        first.append(winner == "a")
    assert stats.maj_at_k(answers, correct, 4) == pytest.approx(np.mean(first))


def test_one_vote_is_the_mean_and_all_votes_the_majority():
    answers, correct = list("aaabbc"), [True] * 3 + [False] * 3
    assert stats.maj_at_k(answers, correct, 1) == pytest.approx(0.5)
    assert stats.maj_at_k(answers, correct, 6) == 1.0
    assert stats.maj_at_k(answers, correct, 2) == stats.maj_at_k(answers, correct, 1)  # of two, a tie or one answer


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: stats.pass_at_k(4, 2, 5), "pass@5 of 2 correct ones of 4"),
        (lambda: stats.pass_at_k(4, 5, 2), "0 <= c <= n"),
        (lambda: stats.maj_at_k("ab", [True, False], 3), "maj@3 of 2 answers"),
        (lambda: stats.maj_at_k("ab", [True], 1), "1 labels"),
        (lambda: stats.maj_at_k("aa", [True, False], 1), "'a' is labelled both correct and wrong"),
        (lambda: stats.maj_at_k("ab", [True, False], 1, ties="first"), "none of random, wrong, right"),
    ],
)
def test_what_cannot_be_is_an_error(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_eight_real_answers_to_a_hundred_problems():
    with gzip.open(shared_data("math/math_cot_100_maj8.jsonl.gz"), "rt") as file:
        rows = [json.loads(line) for line in file]
    counts = [sum(row["score"]) for row in rows]
    means = [float(stats.pass_at_k(8, counts, k).mean()) for k in (1, 2, 4, 8)]
    assert means == sorted(means) and means[0] == pytest.approx(np.mean([row["score"] for row in rows]))
    assert means[-1] == pytest.approx(np.mean([any(row["score"]) for row in rows]))
    np.testing.assert_allclose(means, [0.91, 0.932857, 0.951, 0.96], atol=1e-6)
    # A correct answer may be written in several ways; a grader has them all vote together.
    votes = [["right" if good else pred for pred, good in zip(row["pred"], row["score"], strict=True)] for row in rows]
    found = [[stats.maj_at_k(v, row["score"], k) for v, row in zip(votes, rows, strict=True)] for k in (1, 3, 5, 8)]
    np.testing.assert_allclose(np.mean(found, axis=1), [0.91, 0.916012, 0.921304, 0.925], atol=1e-6)
    split = next(i for i, count in enumerate(counts) if count == 4)
    assert found[1][split] == pytest.approx(subset_by_subset(votes[split], rows[split]["score"], 3, "random"))
