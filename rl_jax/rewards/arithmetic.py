"""Verifier of integer answers: the text after the last "=" (or the whole text) against info["answer"]."""
import re

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")


def score(prompt: str, completion: str, info: dict) -> dict[str, float]:
    """Scores one completion.

    Returns:
      reward = correct: 1.0 if the final answer is the integer info["answer"], written as an integer. format: 1.0 if the
      final answer is an integer without leading zeros, plus sign or other text.
    """
    answer = completion.rpartition("=")[2].strip()
    well_formed = _INTEGER.fullmatch(answer) is not None
    correct = float(well_formed and int(answer) == info["answer"])
    return {"reward": correct, "correct": correct, "format": float(well_formed)}
