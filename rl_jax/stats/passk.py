"""pass@k, pass^k and maj@k from n >= k samples per problem: the exact mean over all subsets of k, hence unbiased."""

import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np

RANDOM, WRONG, RIGHT = TIES = ("random", "wrong", "right")


def pass_at_k(samples: int | Sequence[int], correct: int | Sequence[int], k: int) -> np.ndarray:
    """1 - C(n - c, k) / C(n, k): the share of subsets of k of n samples that contain one of the c correct ones.

    Source: arXiv 2107.03374.

    Args:
      samples: n, per problem or for all.
      correct: int [P], c.
      k: size of the subsets.

    Returns:
      float [P]; its mean is pass@k of the P problems.

    Raises:
      ValueError: if k is not in 1..n or c not in 0..n.
    """
    return _of_each(samples, correct, k, "pass@", lambda n, c: 1.0 - math.comb(n - c, k) / math.comb(n, k))


def pass_hat_k(samples: int | Sequence[int], correct: int | Sequence[int], k: int) -> np.ndarray:
    """pass^k = C(c, k) / C(n, k): the share of subsets of k of n samples that are all correct.

    Source: arXiv 2406.12045 (tau-bench), arXiv 2506.07982 (tau2-bench).

    Args:
      samples: n, per problem or for all.
      correct: int [P], c.
      k: size of the subsets.

    Returns:
      float [P]; its mean is pass^k of the P problems. k = 1: pass@1; k = n: 1 where all n are correct.

    Raises:
      ValueError: if k is not in 1..n or c not in 0..n.
    """
    return _of_each(samples, correct, k, "pass^", lambda n, c: math.comb(c, k) / math.comb(n, k))


def _of_each(
    samples: int | Sequence[int], correct: int | Sequence[int], k: int, name: str, value: Callable[[int, int], float]
) -> np.ndarray:
    """value(n, c) of each problem, on exact integers: no product loses small terms. name: for the message."""
    samples, correct = np.broadcast_arrays(np.asarray(samples), np.asarray(correct))
    result = []
    for n, c in zip(samples.ravel().tolist(), correct.ravel().tolist(), strict=True):
        if not 1 <= k <= n or not 0 <= c <= n:
            raise ValueError(f"{name}{k} of {c} correct ones of {n} samples: needs 1 <= k <= n and 0 <= c <= n")
        result.append(value(n, c))
    return np.array(result).reshape(samples.shape)


def maj_at_k(answers: Sequence[Hashable], correct: Sequence[bool], k: int, *, ties: str = RANDOM) -> float:
    """The share of subsets of k of a problem's n samples whose most frequent answer is correct.

    The mean over all C(n, k) subsets, counted and not sampled: for every highest count h, the subsets in which a
    answers have h votes, b of them correct, and no answer has more.

    Args:
      answers: [n], equal ones vote together.
      correct: bool [n], equal for equal answers. Different answers may both be correct; they do not vote together.
      k: size of the subsets.
      ties: the value of a tie of a answers. "random": b / a, which is also the mean over all orders of the samples if
        the first one with the most votes wins. "wrong": 0 unless all are correct. "right": 1 if one is correct.

    Raises:
      ValueError: if k is not in 1..n, the lengths differ, or equal answers are not equally correct.
    """
    if len(answers) != len(correct) or not 1 <= k <= len(answers):
        raise ValueError(f"maj@{k} of {len(answers)} answers, {len(correct)} labels: needs one each, and 1 <= k <= n")
    if ties not in TIES:
        raise ValueError(f"ties={ties!r} is none of {', '.join(TIES)}")
    votes: dict[Hashable, int] = {}
    labels: dict[Hashable, bool] = {}
    for answer, label in zip(answers, correct, strict=True):
        if labels.setdefault(answer, bool(label)) != bool(label):
            raise ValueError(f"the answer {answer!r} is labelled both correct and wrong")
        votes[answer] = votes.get(answer, 0) + 1
    total = 0.0
    for highest in range(1, min(k, max(votes.values())) + 1):
        # (samples taken, answers with `highest` votes, correct ones among them) -> number of subsets
        ways = {(0, 0, 0): 1}
        for answer, count in votes.items():
            grown: dict[tuple[int, int, int], int] = {}
            for (taken, tied, right), number in ways.items():
                for take in range(min(count, highest, k - taken) + 1):
                    top = take == highest
                    place = taken + take, tied + top, right + (top and labels[answer])
                    grown[place] = grown.get(place, 0) + number * math.comb(count, take)
            ways = grown
        for (taken, tied, right), number in ways.items():
            if taken == k and tied:
                worth = {RANDOM: right / tied, WRONG: float(right == tied), RIGHT: float(right > 0)}[ties]
                total += worth * number / math.comb(len(answers), k)
    return total
