"""Controls of a reward: random, inverted, and the majority's wrong answer. Group terms.

Arms of the contamination studies (arXiv 2507.10532): where nothing can have leaked, only the right reward teaches.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

from rl_jax.rewards import extract as extraction


def bernoulli(completions: Sequence[str], *, prompts: Sequence[str], prob: float = 0.5, seed: int = 0) -> list[float]:
    """1 with probability `prob`, whatever the completion says; drawn by a hash of seed, prompt, text and place.

    Without a state, so a run that is resumed draws the same.

    Raises:
      ValueError: if prob is outside of [0, 1].
    """
    if not 0.0 <= prob <= 1.0:
        raise ValueError(f"prob must lie in [0, 1], got {prob}")
    texts = [f"{seed}\0{place}\0{a}\0{b}" for place, (a, b) in enumerate(zip(prompts, completions, strict=True))]
    draws = [int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:8], "big") for text in texts]
    return [float(draw < prob * 2**64) for draw in draws]


def inverted(completions: Sequence[str], *, terms: Mapping[str, Sequence[float]], of: str) -> list[float]:
    """1 - r of another term.

    Raises:
      ValueError: if there is no such term.
    """
    return [1.0 - float(value) for value in _term(terms, of)]


def majority_wrong(
    completions: Sequence[str],
    *,
    terms: Mapping[str, Sequence[float]],
    of: str,
    extract: str | list[str] = "boxed",
    threshold: float = 0.5,
) -> list[float]:
    """1 for completions whose answer is the most frequent wrong one of the group, else 0.

    A tie goes to the answer that comes first; a completion without an answer has none.

    Args:
      completions: G texts.
      terms: name -> float [G].
      of: the term that says which are right.
      extract: how the answer is found (rl_jax.rewards.extract).
      threshold: right is at or above this.

    Raises:
      ValueError: if there is no such term.
    """
    right = _term(terms, of)
    found = [extraction.answers(text, extract) for text in completions]
    wrong = [a[0] if len(a) == 1 and a[0] and r < threshold else None for a, r in zip(found, right, strict=True)]
    counts = Counter(answer for answer in wrong if answer is not None)
    chosen = counts.most_common(1)[0][0] if counts else None
    return [float(answer is not None and answer == chosen) for answer in wrong]


def _term(terms: Mapping[str, Sequence[float]], name: str) -> Sequence[float]:
    if name not in terms:
        raise ValueError(f"of={name!r} is no term; the terms are {', '.join(sorted(terms)) or 'none'}")
    return terms[name]
