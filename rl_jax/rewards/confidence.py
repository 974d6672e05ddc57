"""Rewards for an answer with a verbalised confidence (RLCR): for right answers and for calibrated confidences."""

import re
from typing import Any

from rl_jax.core.binding import resolve

FORMAT = r".*?</think>\s*<answer>(.*?)</answer>\s*<confidence>(.*?)</confidence>\s*\Z"
_BEGIN, _MIDDLE, _END = re.compile(r"</think>\s*<answer>"), re.compile(r"</answer>\s*<confidence>"), "</confidence>"
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


def read(completion: str, *, pattern: str = FORMAT, scale: float = 1.0) -> tuple[str, float] | None:
    """(answer, confidence) of "... </think> <answer>..</answer> <confidence>..</confidence>".

    None for another format, or if the confidence is not a number in [0, 1].

    Args:
      completion: a text.
      pattern: of another format; its first group is the answer, its second one the confidence.
      scale: what a confidence is divided by: 9 for one in digits.
    """
    found = _read(completion) if pattern == FORMAT else re.match(pattern, completion, re.DOTALL)
    answer, said = found.group(1, 2) if isinstance(found, re.Match) else found or ("", "")
    # float() alone reads "0_1", "infinity" and the digits of other scripts, too.
    if found is None or _NUMBER.fullmatch(said.strip()) is None:
        return None
    confidence = float(said) / scale
    return (answer, confidence) if 0.0 <= confidence <= 1.0 else None  # a nan is in no interval


def _read(text: str) -> tuple[str, str] | None:
    """The groups of FORMAT, in time linear in the text: as a pattern it takes the cube of its length."""
    text = text.rstrip()
    begin = _BEGIN.search(text)
    middle = _MIDDLE.search(text, begin.end()) if begin else None
    end = len(text) - len(_END)
    if middle is None or middle.end() > end or not text.endswith(_END):
        return None
    return text[begin.end() : middle.start()], text[middle.end() : end]


def brier(correct: bool, confidence: float) -> float:
    """1[correct] - (c - 1[correct])^2, in [-1, 1]: its expectation is greatest if c is the probability of being right.

    Source: arXiv 2507.16806 equation 4.
    """
    return float(correct) - (confidence - float(correct)) ** 2


def weighted(
    correct: bool,
    confidence: float | None,
    *,
    format_weight: float = 0.5,
    correct_weight: float = 0.5,
    calibration_weight: float = 0.5,
) -> float:
    """w_f + w_c 1[correct] + w_b (1 - (c - 1[correct])^2), and 0 if the format is wrong (confidence None).

    Source: the reward in the code of arXiv 2507.16806 (reward_fns.py), whose three weights are .5.
    """
    if confidence is None:
        return 0.0
    right = float(correct)
    return format_weight + correct_weight * right + calibration_weight * (1.0 - (confidence - right) ** 2)


def calibrated(
    prompt: str,
    completion: str,
    info: dict[str, Any],
    *,
    verifier: str = "",
    field: str = "answer",
    calibration_weight: float = 1.0,
    pattern: str = FORMAT,
    scale: float = 1.0,
) -> dict[str, float]:
    """RLCR: 1[correct] - w (c - 1[correct])^2, an item term; a completion without a confidence has correct 0 and c 1.

    Source: arXiv 2507.16806 equation 4, w = 1; w = 0 is the plain verifiable reward.

    Args:
      prompt: given to the verifier.
      completion: an answer with a confidence.
      info: of the record.
      verifier: import path of an item term that scores the answer: right if its `correct`, or its value, is 1. "": the
        answer must equal info[field].
      field: of info.
      calibration_weight: w.
      pattern: as in `read`.
      scale: as in `read`.

    Returns:
      reward; correct, format and confidence; brier, (c - 1[correct])^2, which is better the lower it is.

    Raises:
      ValueError: if there is no verifier and info has no such field.
    """
    if not verifier and field not in info:
        given = ", ".join(sorted(info)) or "nothing"
        raise ValueError(f"confidence.calibrated: info has no {field!r}; it has: {given}")
    found = read(completion, pattern=pattern, scale=scale)
    correct, confidence = 0.0, 1.0
    if found is not None:
        answer, confidence = found
        scored = resolve(verifier)(prompt, answer, info) if verifier else answer.strip() == str(info[field])
        scored = scored.get("correct", scored["reward"]) if isinstance(scored, dict) else scored
        correct = float(scored >= 1)
    error = (confidence - correct) ** 2
    parts = {"correct": correct, "format": float(found is not None), "confidence": confidence, "brier": error}
    return {"reward": correct - calibration_weight * error, **parts}
