"""Group terms for length: called once per group with the G samples of one prompt."""

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
    if correct not in terms:
        raise ValueError(f"correct={correct!r} is no term; the terms are {', '.join(sorted(terms)) or 'none'}")
    right = np.asarray(terms[correct], np.float64) > threshold
    sizes = np.maximum(np.asarray(lengths, np.float64), 1.0)
    shortest = sizes[right].min() if right.any() else 0.0
    return np.where(right, shortest / sizes, 0.0).tolist()


def gated_score(
    terms: Mapping[str, np.ndarray], weights: Mapping[str, float], *, by: str, score: str, threshold: float = 1.0
) -> np.ndarray:
    """w_by r_by + w_score sigma(r_score) where r_by >= threshold: a composition for config.reward.compose.

    A learned score of conciseness counts only for a right answer, and never for more than its weight: a wrong answer
    gains nothing by being short. Our reading of arXiv 2511.09158 (outcome-gated), whose formula could not be read.

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
    with np.errstate(over="ignore"):
        learned = 1.0 / (1.0 + np.exp(-np.asarray(terms[score], np.float64)))
    gated = np.where(right >= threshold, weights.get(score, 0.0) * learned, 0.0)
    return (weights.get(by, 0.0) * right + gated).astype(np.float32)
