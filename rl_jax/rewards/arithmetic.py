"""Verifier of integer answers: the text after the last "=" (or the whole text) against info["answer"]."""
import re

from rl_jax.rewards import normal_form

MAX_LENGTH = 200  # characters of an answer, with its unit and its box
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_ROUND = re.compile(r"(0|-? ?[1-9][0-9]{0,17})(?:\.0*)?")


def read(text: str) -> int | None:
    """The one integer that an answer says, or None.

    Read are 7, -7 (U+2212, too), 7.0, 7., 1,000, 7 apples, $7, \\boxed{7}. Not read are other numbers beside it, words
    that change it (7 million, 7 or 8, not 7), percents, sums (3+4), leading zeros, a plus sign, and -0.

    Args:
      text: the answer alone.
    """
    if len(text) > MAX_LENGTH:
        return None
    normal = normal_form.normalise(text.strip(" $\n\t"))
    match = None if normal.percent else _ROUND.fullmatch(normal_form.thousands(normal.text))
    return int(match[1].replace(" ", "")) if match else None


def score(prompt: str, completion: str, info: dict) -> dict[str, float]:
    """Scores one completion.

    Returns:
      reward = correct: 1.0 if the final answer says the integer info["answer"], as `read` reads it. format: 1.0 if the
      final answer is a bare integer without leading zeros, plus sign or other text.
    """
    answer = completion.rpartition("=")[2].strip()
    well_formed = _INTEGER.fullmatch(answer) is not None
    correct = float(read(answer) == info["answer"])
    return {"reward": correct, "correct": correct, "format": float(well_formed)}
