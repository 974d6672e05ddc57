"""Rewards for an answer with a verbalised confidence (RLCR): for right answers and for calibrated confidences."""

import re

FORMAT = r".*?</think>\s*<answer>(.*?)</answer>\s*<confidence>(.*?)</confidence>\s*\Z"


def read(completion: str) -> tuple[str, float] | None:
    """(answer, confidence) of "... </think> <answer>..</answer> <confidence>..</confidence>".

    None for another format, or if the confidence is not a number in [0, 1].
    """
    match = re.match(FORMAT, completion, re.DOTALL)
    if match is None:
        return None
    try:
        confidence = float(match[2])
    except ValueError:
        return None
    return (match[1], confidence) if 0.0 <= confidence <= 1.0 else None  # a nan is in no interval


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
