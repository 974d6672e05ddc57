"""Questions that are asked in another way, with the same answer: what a model learns to rewrite from, or rules (CLPO).

    diversify   3+5-2+7=  ->  7-2+3+5=     the same question, the numbers in another order
    simplify    3+5-2+7=  ->  8-2+7=       an easier one: the first step is done

Each is a function (question, rng) -> question. Source: arXiv 2509.25004, where the policy itself is asked to rewrite
(experiments.parts.foreign_restructured).
"""

import random
import re
from collections.abc import Sequence

import numpy as np

SUM = re.compile(r"-?\d+(?:[+-]\d+)+=")


def diversify(question: str, rng: random.Random) -> str:
    """The terms of a sum in another order, one with a plus sign first; as it is if there is no other order.

    Raises:
      ValueError: if the question is no sum.
    """
    terms, result = _terms(question), question
    for _ in range(10):
        order = rng.sample(terms, len(terms))
        if order[0] >= 0 and order != terms:
            return _join(order)
    return result


def simplify(question: str, rng: random.Random) -> str:
    """The sum with its first two terms added up; as it is if it has only two.

    Raises:
      ValueError: if the question is no sum.
    """
    terms = _terms(question)
    return question if len(terms) < 3 else _join([terms[0] + terms[1], *terms[2:]])


def difficulty(accuracy: np.ndarray, *, hard: float = 0.3, medium: float = 0.7) -> np.ndarray:
    """0 hard, 1 medium, 2 easy: int [N] of the share of right answers, float [N].

    Args:
      accuracy: of each group.
      hard: at most this is hard.
      medium: more than `hard`, and at most this, is medium.

    Raises:
      ValueError: if the thresholds are not in order.
    """
    if not 0 <= hard <= medium <= 1:
        raise ValueError(f"hard={hard} and medium={medium} must be shares in this order")
    return (accuracy > hard).astype(int) + (accuracy > medium)


def slots(kinds: np.ndarray, useful: np.ndarray) -> list[tuple[int, int]]:
    """(slot, rewritten group) pairs: which group of the batch each useful rewritten group takes the place of.

    An easy group gives its place first, as it teaches least; then the rewritten question takes that of its own
    original. Groups that keep their place are trained on as well: the union of questions and rewritten ones.

    Args:
      kinds: int [N] of `difficulty`.
      useful: bool [N], the rewritten questions of hard and medium groups that are to be trained on.
    """
    easy: Sequence[int] = np.flatnonzero(kinds == 2)
    asked = np.flatnonzero(useful & (kinds < 2))
    asked = asked[np.argsort(kinds[asked], kind="stable")]  # hard ones first
    return [(int(easy[i]) if i < len(easy) else int(group), int(group)) for i, group in enumerate(asked)]


def spare_slots(spread: np.ndarray, taken: Sequence[int], wanted: np.ndarray) -> list[tuple[int, int]]:
    """(slot, group) pairs: the places that groups of rewriting trajectories take, without loss.

    A group whose rewards are all equal teaches nothing, so its place is free if no rewritten question has it.

    Args:
      spread: bool [N], groups of the batch whose rewards differ.
      taken: slots of rewritten questions.
      wanted: bool [N], the groups whose rewritings differ in what they gained.
    """
    free = np.setdiff1d(np.flatnonzero(~spread), np.asarray(taken, int))
    return [(int(slot), int(group)) for slot, group in zip(free, np.flatnonzero(wanted), strict=False)]


def a_sum(text: str, question: str) -> str | None:
    """The question that a policy has written, None if it is no sum or the question itself."""
    said = text.strip()
    return said if SUM.fullmatch(said) and said != question else None


def _terms(question: str) -> list[int]:
    if not SUM.fullmatch(question):
        raise ValueError(f"{question!r:.60} is no sum like '3+5-2=': name a function that rewrites these questions")
    return [int(x) for x in re.findall(r"[+-]?\d+", question)]


def _join(terms: Sequence[int]) -> str:
    return str(terms[0]) + "".join(f"{term:+d}" for term in terms[1:]) + "="
