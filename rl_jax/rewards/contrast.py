"""Group terms that look at how a group's completions differ, and a composition for terms that only an advantage reads.

Named in config.reward by their import path, "rl_jax.rewards.contrast:answer_entropy".
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from rl_jax.core import binding
from rl_jax.rewards import compose, extract


def answer_entropy(completions: list[str], *, rule: str = "whole") -> list[float]:
    """The entropy of the group's answers in bits, the same for all completions: 0 if all agree, log2 G if none do.

    Completions without an answer, or with several, count as one further answer. Source: COPO arXiv 2508.04138.

    Args:
      completions: G texts.
      rule: how the answer is found, a name of rl_jax.rewards.extract.RULES.
    """
    answers = [extract.answers(text, rule) for text in completions]
    counts = Counter(found[0].strip() if len(found) == 1 else None for found in answers)
    shares = [count / len(completions) for count in counts.values()]
    return [sum(-share * math.log2(share) for share in shares)] * len(completions)


def contrast_bonus(
    completions: list[str], *, terms: Mapping[str, Sequence[float]], right: str, uses: str, margin: float = 0.0
) -> list[float]:
    """GCPO's masked reward: using an aid earns 1 where it helps the group, costs 1 where it hurts, else nothing.

        M r_uses,   M = sign(mean of r_right with the aid - mean without it) if they differ by more than margin, else 0

    A group in which all use the aid, or none does, has M = 0. Source: arXiv 2506.07160, as summarised by others: its
    margin could not be read.

    Args:
      completions: G texts, unused.
      terms: name -> values of the item terms.
      right: name of the term that says whether an answer is right.
      uses: name of the term that says whether the aid was used, 1 or 0.
      margin: in the units of r_right.

    Raises:
      ValueError: if there is no item term of one of these names.
    """
    if missing := sorted({right, uses} - set(terms)):
        raise ValueError(
            f"contrast_bonus reads the terms {right!r} and {uses!r}; no item term is called "
            f"{', '.join(missing)}; item terms: {', '.join(sorted(terms)) or 'none'}"
        )
    used = np.asarray(terms[uses], np.float64) > 0.5
    scores = np.asarray(terms[right], np.float64)
    if used.all() or not used.any():
        return [0.0] * len(scores)
    gap = scores[used].mean() - scores[~used].mean()
    sign = float(np.sign(gap)) if abs(gap) > margin else 0.0
    return [sign * float(x) for x in used]


def only(
    terms: compose.Terms, weights: compose.Weights, *, names: Sequence[str], of: compose.Spec = "weighted_sum"
) -> np.ndarray:
    """The composition of the named terms; the others are not rewarded, but an advantage sees them as components.

    Args:
      terms: name -> float32 [B].
      weights: name -> w.
      names: of the terms that count.
      of: their composition.

    Returns:
      float32 [B].

    Raises:
      ValueError: if a name has no term.
    """
    if unknown := sorted(set(names) - set(terms)):
        raise ValueError(f"no reward term is called {', '.join(unknown)}; terms: {', '.join(sorted(terms))}")
    inner = binding.bind(of, compose)
    return inner({n: terms[n] for n in names}, {n: weights.get(n, 0.0) for n in names})
