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
