"""Rewards for length: group terms, called once per group with the G samples of one prompt, and compositions."""

from collections.abc import Mapping, Sequence

import numpy as np


def short_and_right(
    completions: Sequence[str],
    *,
    lengths: Sequence[int],
    terms: Mapping[str, Sequence[float]],
    correct: str,
    threshold: float = 0.5,
) -> list[float]:
    """For a right completion the shortest right length of its group over its own, in (0, 1]; 0 for a wrong one.

    The target moves with the policy: the shortest right answer of the group gets 1, one twice as long .5, and where
    nothing is right nobody is paid for being short. Our reading of arXiv 2506.15647, whose formula we do not know;
    weight 0 is the reward without it.

    Args:
      completions: G texts.
      lengths: int [G], tokens.
      terms: name -> float [G], the terms scored before.
      correct: the name of the term that says which are right.
      threshold: right is above this.

    Raises:
      ValueError: if there is no such term.
    """
    right = _right(terms, correct, threshold)
    sizes = np.maximum(np.asarray(lengths, np.float64), 1.0)
    shortest = sizes[right].min() if right.any() else 0.0
    return np.where(right, shortest / sizes, 0.0).tolist()


def ease(
    completions: Sequence[str], *, terms: Mapping[str, Sequence[float]], correct: str, threshold: float = 0.5
) -> list[float]:
    """d = exp(number of right completions / G) for each of a group, from 1 (none is right) to e (all are).

    How easy the prompt is to the policy, for `concise_reward`. Source: d_q of arXiv 2511.09158.

    Args:
      completions: G texts.
      terms: name -> float [G], the terms scored before.
      correct: the name of the term that says which are right.
      threshold: right is above this.

    Raises:
      ValueError: if there is no such term.
    """
    right = _right(terms, correct, threshold)
    return [float(np.exp(right.mean()))] * len(completions)


def concise_reward(
    terms: Mapping[str, np.ndarray],
    weights: Mapping[str, float],
    *,
    by: str,
    score: str,
    ease: str,
    alpha: float = 0.2,
    anneal: float = 1.0,
) -> np.ndarray:
    """R = w_by r_by [1 + alpha c (s + d)], c = sigma(r_score): a composition for config.reward.compose.

    The conciseness of an answer multiplies its outcome, so that a wrong one (r_by = 0) gains nothing by being short,
    and it counts more where most of the group is right. r_by is from 0 to 1: a negative one would be worth less if
    short. Source: arXiv 2511.09158 (the conciseness reward function), as quoted in a review of it on OpenReview; d is
    exp(right / G) in a reader's table. There c is a number from .1 to 1 that a fine-tuned language model says, and s
    anneals over the training; alpha and s, a constant here, are ours.

    Args:
      terms: name -> float32 [B].
      weights: name -> w; only that of `by` counts.
      by: name of the outcome, r_by.
      score: name of the learned score, a log-odds.
      ease: name of d (the group term `ease`).
      alpha: weight of conciseness.
      anneal: s.

    Returns:
      float32 [B].

    Raises:
      ValueError: if there is no such term.
    """
    if missing := sorted({by, score, ease} - set(terms)):
        raise ValueError(
            f"concise_reward: no term {', '.join(missing)}; the terms are {', '.join(sorted(terms)) or 'none'}"
        )
    outcome, easy = (np.asarray(terms[name], np.float64) for name in (by, ease))
    concise = _sigmoid(terms[score])
    return (weights.get(by, 0.0) * outcome * (1.0 + alpha * concise * (anneal + easy))).astype(np.float32)


def gated_score(
    terms: Mapping[str, np.ndarray], weights: Mapping[str, float], *, by: str, score: str, threshold: float = 1.0
) -> np.ndarray:
    """w_by r_by + w_score sigma(r_score) where r_by >= threshold: a composition for config.reward.compose.

    A learned score of conciseness counts only for a right answer, and never for more than its weight: a wrong answer
    gains nothing by being short. Ours; the formula of arXiv 2511.09158 is `concise_reward`.

    Args:
      terms: name -> float32 [B].
      weights: name -> w.
      by: name of the term that says whether the answer is right.
      score: name of the learned score, a log-odds.
      threshold: smallest value of `by` that is right.

    Returns:
      float32 [B].

    Raises:
      ValueError: if there is no such term.
    """
    if missing := sorted({by, score} - set(terms)):
        raise ValueError(
            f"gated_score: no term {', '.join(missing)}; the terms are {', '.join(sorted(terms)) or 'none'}"
        )
    right = np.asarray(terms[by], np.float64)
    learned = _sigmoid(terms[score])
    gated = np.where(right >= threshold, weights.get(score, 0.0) * learned, 0.0)
    return (weights.get(by, 0.0) * right + gated).astype(np.float32)


def _right(terms: Mapping[str, Sequence[float]], correct: str, threshold: float) -> np.ndarray:
    """bool [G], which are right. Raises ValueError if there is no such term."""
    if correct not in terms:
        raise ValueError(f"correct={correct!r} is no term; the terms are {', '.join(sorted(terms)) or 'none'}")
    return np.asarray(terms[correct], np.float64) > threshold


def _sigmoid(scores: Sequence[float]) -> np.ndarray:
    """float64 [B]; 0 where exp of minus a score is too large."""
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-np.asarray(scores, np.float64)))
