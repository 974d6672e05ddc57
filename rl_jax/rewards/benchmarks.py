"""Quality of a learned reward, in numpy: accuracy, calibration, length bias, published benchmarks, best-of-n.

Scores may come from any model; none is run here.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# --- Pairs -----------------------------------------------------------------------------------------------------------


def pair_accuracy(chosen: np.ndarray, rejected: np.ndarray, *, ties: float = 0.0) -> float:
    """Fraction of pairs with r_w > r_l.

    Args:
      chosen: float [N]. r_w.
      rejected: float [N]. r_l.
      ties: what a tie counts (0 as in TRL: a model without any preference is not right).
    """
    chosen, rejected = _same(chosen, rejected)
    return float(np.mean((chosen > rejected) + ties * (chosen == rejected)))


def calibration_error(probs: np.ndarray, labels: np.ndarray, *, bins: int = 10) -> float:
    """ECE: sum_b n_b / N |mean label - mean prob| over `bins` equal-width bins on [0, 1], upper edges included.

    Source: arXiv 1706.04599.

    Args:
      probs: float [N]. For a pair sigma(r_w - r_l), whose label is always 1: give each pair in a random order.
      labels: [N] in [0, 1].
      bins: number of bins.

    Raises:
      ValueError: if a prob is outside of [0, 1], or the shapes differ.
    """
    probs, labels = _same(probs, labels)
    if ((probs < 0) | (probs > 1)).any():
        raise ValueError(f"probabilities must be in [0, 1], got values from {probs.min()} to {probs.max()}")
    place = np.clip(np.ceil(probs * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.bincount(place, weights=labels - probs, minlength=bins)
    return float(np.abs(gaps).sum() / len(probs))


def length_correlation(scores: np.ndarray, lengths: np.ndarray) -> float:
    """Pearson correlation of scores and lengths, 0 if one of them is constant. [N], [N]."""
    scores, lengths = _same(scores, lengths)
    spread = scores.std() * lengths.std()
    return float(np.mean((scores - scores.mean()) * (lengths - lengths.mean())) / spread) if spread > 0 else 0.0


def area_under_curve(scores: np.ndarray, labels: np.ndarray) -> float:
    """AUC: the probability that a right one scores above a wrong one; ties count 1/2.

    Args:
      scores: float [N].
      labels: bool or 0/1 [N].

    Raises:
      ValueError: if all labels are the same.
    """
    scores, labels = _same(scores, labels)
    right = labels > 0.5
    positives, negatives = int(right.sum()), int((~right).sum())
    if not positives or not negatives:
        raise ValueError(f"AUC needs right and wrong ones, got {positives} right and {negatives} wrong ones")
    order = np.sort(scores)
    ranks = 0.5 * (np.searchsorted(order, scores, "left") + np.searchsorted(order, scores, "right") + 1)
    return float((ranks[right].sum() - positives * (positives + 1) / 2) / (positives * negatives))


# --- Published benchmarks --------------------------------------------------------------------------------------------


def reward_math(right: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """RewardMATH for one problem: {"accuracy", "accuracy_ties", "mrr"}.

    Source: arXiv 2410.01729 and its code.

    Args:
      right: float [R], usually 1.
      wrong: float [W], usually 9.

    Returns:
      accuracy: min(right) > max(wrong); accuracy_ties: the same with >=; mrr: 1 / rank of the best right one, with ties
      counted against it.
    """
    right, wrong = np.asarray(right, np.float64), np.asarray(wrong, np.float64)
    rank = 1 + int((wrong >= right.max()).sum())
    return {
        "accuracy": float(right.min() > wrong.max()),
        "accuracy_ties": float(right.min() >= wrong.max()),
        "mrr": 1.0 / rank,
    }


def reward_bench_2(scores: np.ndarray) -> float:
    """RewardBench 2's accuracy on a subset: fraction of prompts whose first completion, the right one, scores highest.

    If k completions share the highest score, and the first is one of them, it counts 1 / k. The score of the benchmark
    is the mean over subsets. Source: arXiv 2506.01937, reroll_and_score_dataset of rewardbench 0.1.4.

    Args:
      scores: float [N, 4].
    """
    scores = np.asarray(scores, np.float64)
    best = scores == scores.max(axis=1, keepdims=True)
    return float(np.mean(best[:, 0] / best.sum(axis=1)))


def reward_bench_ties(items: Sequence[tuple[Sequence, Sequence, Sequence, Sequence]]) -> float:
    """RewardBench 2's Ties subset: prompts with one right answer, each next to a version with several.

    With spread = max - min of the right ones of the second, and g = min(right) - max(wrong) of each,

        .3 E[g_2 > 0] + .3 E[g_1 > 0] + .2 E[g_2 > spread] + .2 E[min(g) > spread] + .01 E[tanh(min(g) / spread - 1)]

    The last mean is over the prompts with spread > 0. Source: rewardbench 0.1.4, process_single_model.

    Args:
      items: one (right, wrong, right of the second, wrong of the second) per prompt, each a list of scores.
    """
    rows, bonuses = [], [0.0]
    for right, wrong, right_2, wrong_2 in items:
        single, several = min(right) - max(wrong), min(right_2) - max(wrong_2)
        spread, least = max(right_2) - min(right_2), min(single, several)
        rows.append((several > 0, single > 0, several > spread, least > spread))
        if spread > 0:
            bonuses.append(math.tanh(least / spread - 1.0))
    bonus = sum(bonuses) / max(len(bonuses) - 1, 1)
    return float(np.mean(np.asarray(rows, np.float64), axis=0) @ np.array([0.3, 0.3, 0.2, 0.2]) + 0.01 * bonus)


# --- Best of n -------------------------------------------------------------------------------------------------------


class BestOfN(NamedTuple):
    """Best-of-n for one n.

    Attributes:
      n: number of samples.
      gold: mean gold score of the sample that the proxy chooses.
      proxy: mean proxy score of that sample.
      kl: bound of the KL, in nats (best_of_n_kl).
    """

    n: int
    gold: float
    proxy: float
    kl: float


def best_of_n_kl(n: int) -> float:
    """log n - (n - 1) / n nats: upper bound of KL(best-of-n || policy), with equality if no two samples tie.

    Source: arXiv 2009.01325; that it is a bound, arXiv 2401.01879.
    """
    return math.log(n) - (n - 1) / n


def best_of_n(proxy: np.ndarray, gold: np.ndarray, sizes: Sequence[int]) -> list[BestOfN]:
    """The exact mean over all subsets of n of the S samples, without sampling subsets.

    Sorted by proxy, the i-th sample from below (i = 1 .. S) is the best of its subset in C(i - 1, n - 1) / C(S, n) of
    them. Samples with equal proxy scores share their places, which breaks ties at random. Source: the estimator of
    arXiv 2210.10760 (appendix I), as for pass@k.

    Args:
      proxy: float [P, S]. S samples of each of P prompts.
      gold: float [P, S].
      sizes: the n, each at most S.

    Returns:
      One BestOfN per size.

    Raises:
      ValueError: if a size is outside of 1 .. S, or the shapes differ.
    """
    proxy, gold = np.asarray(proxy, np.float64), np.asarray(gold, np.float64)
    samples = proxy.shape[1]
    if proxy.shape != gold.shape:
        raise ValueError(f"proxy is {proxy.shape} and gold is {gold.shape}: give both for the same samples")
    if min(sizes) < 1 or max(sizes) > samples:
        raise ValueError(f"sizes={list(sizes)} must be from 1 to the number of samples, {samples}")
    order = np.argsort(proxy, axis=1)
    ranked, ordered = np.take_along_axis(gold, order, 1), np.take_along_axis(proxy, order, 1)
    ranked = np.stack([_level(*rows) for rows in zip(ranked, ordered, strict=True)])
    result = []
    for n in sizes:
        weights = np.array([math.comb(i, n - 1) / math.comb(samples, n) for i in range(samples)])
        means = [float(np.mean(x @ weights)) for x in (ranked, ordered)]
        result.append(BestOfN(n, *means, best_of_n_kl(n)))
    return result


def rerank_accuracy(scores: Sequence[Sequence[float]], right: Sequence[Sequence[bool]]) -> dict[str, float]:
    """How often the best-scored of several solutions is right, compared with chance and an oracle.

    Args:
      scores: one list per problem.
      right: one list per problem.

    Returns:
      "chosen": the best-scored, ties at random; "chance": mean fraction of right ones; "oracle": whether any is right.
    """
    chosen, chance, oracle = [], [], []
    for values, labels in zip(scores, right, strict=True):
        values, labels = _same(values, labels)
        chosen.append(labels[values == values.max()].mean())
        chance.append(labels.mean())
        oracle.append(labels.max())
    return {name: float(np.mean(x)) for name, x in (("chosen", chosen), ("chance", chance), ("oracle", oracle))}


def first_error_f1(named: Sequence[int], first_errors: Sequence[int]) -> dict[str, float]:
    """ProcessBench's F1 (arXiv 2412.06559): the harmonic mean of two accuracies; -1 says that no step is wrong.

    Args:
      named: the first wrong step that a judge names for each solution, -1 for none.
      first_errors: the true one.

    Returns:
      "wrong": accuracy on solutions with an error; "right": on those without; "f1", 0 if both are. A kind of solution
      that is missing is left out, and f1 with it.
    """
    named, first_errors = _same(named, first_errors)
    sides = {"wrong": first_errors >= 0, "right": first_errors < 0}
    # Any negative number says none.
    agrees = np.maximum(named, -1) == np.maximum(first_errors, -1)
    result = {side: float(agrees[rows].mean()) for side, rows in sides.items() if rows.any()}
    if len(result) == 2:
        total = result["wrong"] + result["right"]
        result["f1"] = 2 * result["wrong"] * result["right"] / total if total else 0.0
    return result


def _level(gold: np.ndarray, proxy: np.ndarray) -> np.ndarray:
    """gold, with its mean over each run of equal (sorted) proxy scores. float [S], [S] -> [S]."""
    _, place, counts = np.unique(proxy, return_inverse=True, return_counts=True)
    return (np.bincount(place, weights=gold) / counts)[place]


def _same(left, right) -> tuple[np.ndarray, np.ndarray]:
    """Both as float64 [N] of the same length N > 0. Raises ValueError if they are not."""
    left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
    if left.shape != right.shape or left.ndim != 1 or not len(left):
        raise ValueError(f"expected two arrays of one length, found {left.shape} and {right.shape}")
    return left, right
