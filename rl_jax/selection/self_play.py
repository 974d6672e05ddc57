"""Absolute Zero in small: expressions that the policy proposes and solves, their executor, and both roles' rewards.

A proposal is a sum, "12+7-3". As deduction its question is "12+7-3=" (16); as abduction the first number is missing,
"+7-3=16=" (12). In numpy and plain Python, on the host. Source: arXiv 2505.03335 (LeapLabTHU/Absolute-Zero-Reasoner),
whose tasks are Python programs, with induction as a third kind.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

KINDS = ("deduction", "abduction")
MALFORMED, WRONG = -1.0, -0.5
_SUM = re.compile(r"\d{1,9}(?:[+-]\d{1,9}){1,9}", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,12}", re.ASCII)


class Question(NamedTuple):
    """A proposal that can be asked."""

    prompt: str
    answer: int


def execute(expression: str) -> int | None:
    """The value of a sum of whole numbers; None if the text is no such sum."""
    if not _SUM.fullmatch(expression):
        return None
    return sum(int(term) for term in re.findall(r"[+-]?\d+", expression))


def question(text: str, kind: str, *, digits: int, operands: int) -> Question | None:
    """The question of a proposal, or None if it is not one.

    Args:
      text: the proposal.
      kind: one of KINDS.
      digits: most digits of a number.
      operands: most numbers.

    Raises:
      ValueError: if the kind is unknown.
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is none of {', '.join(KINDS)}")
    value, numbers = execute(text), re.findall(r"\d+", text)
    if value is None or len(numbers) > operands or max(map(len, numbers)) > digits:
        return None
    if kind == "deduction":
        return Question(f"{text}=", value)
    return Question(f"{text[len(numbers[0]) :]}={value}=", int(numbers[0]))


def proposer_rewards(texts: Sequence[str], questions: Sequence[Question | None], accuracy: np.ndarray) -> np.ndarray:
    """Learnability: 1 - accuracy of the solver if it is above 0, else 0; -.5 for a sum over the limits, -1 for no sum.

    Args:
      texts: B proposals.
      questions: B, None for those that cannot be asked.
      accuracy: float [B], share of right answers; not read if there is no question.

    Returns:
      float32 [B].
    """
    rewards = [
        (1.0 - share if share > 0 else 0.0) if asked else WRONG if execute(text) is not None else MALFORMED
        for text, asked, share in zip(texts, questions, accuracy, strict=True)
    ]
    return np.asarray(rewards, np.float32)


def solver_rewards(texts: Sequence[str], answers: Sequence[int]) -> np.ndarray:
    """1 for the answer, -.5 for another number, -1 for no number. B texts, B answers -> float32 [B]."""
    return np.asarray(
        [
            MALFORMED if not _NUMBER.fullmatch(text) else 1.0 if int(text) == answer else WRONG
            for text, answer in zip(texts, answers, strict=True)
        ],
        np.float32,
    )


def whitened_by_role(rewards: np.ndarray, lengths: np.ndarray, roles: np.ndarray) -> np.ndarray:
    """TRR++: REINFORCE++'s advantages with a mean and a std of each task and role.

        A = (R - mean) / sqrt(var + 1e-8),   mean and var over the tokens of all rows of the role (var with n - 1)

    Args:
      rewards: float [B].
      lengths: int [B], tokens of each row.
      roles: int [B].

    Returns:
      float32 [B]; 0 for a role with one token at most.
    """
    result = np.zeros(len(rewards))
    for role in np.unique(roles):
        rows = roles == role
        weight, values = lengths[rows].astype(float), rewards[rows].astype(float)
        count = weight.sum()
        if count > 1:
            mean = (weight * values).sum() / count
            var = (weight * (values - mean) ** 2).sum() / (count - 1)
            result[rows] = (values - mean) / np.sqrt(var + 1e-8)
    return result.astype(np.float32)
