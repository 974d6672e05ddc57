"""Rewards for the form of a completion: tags, patterns, length, repetition, language. Item terms, usually small parts.

Each is (prompt, completion, info, **keywords) -> {"reward", components}. Lengths here are in words or characters, since
an item term sees texts; in tokens they are group terms (rl_jax.rewards.brevity) or config.algorithm.shaping.
"""

import functools
import re
import unicodedata
from collections.abc import Sequence

from rl_jax.rewards.exact import well_formed

UNITS = ("words", "characters")
MAX_CHARACTERS = 200_000


def tags(
    prompt: str, completion: str, info: dict, *, names: Sequence[str] = ("think", "answer"), soft: bool = False
) -> dict[str, float]:
    """1 if the completion is <think>...</think><answer>...</answer>: each tag once, in order, not empty, nothing else.

    Args:
      prompt: unused.
      completion: the text.
      info: unused.
      names: the tags, in order.
      soft: pay the share of opening and closing tags that stand exactly once, instead of all or nothing.

    Returns:
      reward; format: all of it.
    """
    formed = float(well_formed(completion, names))
    marks = [mark for name in names for mark in (f"<{name}>", f"</{name}>")]
    share = sum(completion.count(mark) == 1 for mark in marks) / len(marks)
    return {"reward": share if soft else formed, "format": formed}


def pattern(prompt: str, completion: str, info: dict, *, regex: str) -> dict[str, float]:
    """1 if the whole completion matches a regular expression, where "." is any character, a new line too.

    Raises:
      ValueError: if the expression is not valid.
    """
    formed = float(_compiled(regex).fullmatch(completion) is not None)
    return {"reward": formed, "format": formed}


def overlong(
    prompt: str, completion: str, info: dict, *, limit: int, buffer: int, unit: str = "words", penalty: float = 1.0
) -> dict[str, float]:
    """-penalty min(max(n - (limit - buffer), 0) / buffer, 1): 0 up to limit - buffer, -penalty from the limit on.

    Source: DAPO, arXiv 2503.14476 eq. 13, on words or characters; rl_jax.credit.shaping.overlong is that of tokens.

    Raises:
      ValueError: if 0 < buffer <= limit does not hold or the unit is unknown.
    """
    if not 0 < buffer <= limit:
        raise ValueError(f"overlong needs 0 < buffer <= limit, got buffer={buffer} and limit={limit}")
    n = length(completion, unit)
    return {"reward": -penalty * min(max(n - (limit - buffer), 0) / buffer, 1.0), "length": float(n)}


def target_length(
    prompt: str,
    completion: str,
    info: dict,
    *,
    target: int = 0,
    target_field: str = "",
    unit: str = "words",
    per_unit: float = 0.0,
) -> dict[str, float]:
    """-per_unit |n - n*|; with per_unit 0 the share -min(|n - n*| / n*, 1).

    Source: the exact form of L1, arXiv 2503.04697, whose alpha is per_unit (.0003 there, per token).

    Args:
      prompt: unused.
      completion: the text.
      info: may have the target.
      target: n*.
      target_field: the field of info that has n*, instead of target.
      unit: "words" or "characters".
      per_unit: penalty of each unit too many or too few.

    Raises:
      ValueError: if there is no positive target.
    """
    wanted = info.get(target_field) if target_field else target
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise ValueError(f"the target of a length must be a positive integer, found {wanted!r} in "
                         + (f"info[{target_field!r}]" if target_field else "target="))  # fmt: skip
    error = abs(length(completion, unit) - wanted)
    return {"reward": -per_unit * error if per_unit else -min(error / wanted, 1.0), "length_error": float(error)}


def longer(prompt: str, completion: str, info: dict, *, cap: int, unit: str = "words") -> dict[str, float]:
    """min(n / cap, 1): grows with the length up to a cap.

    Our reading of the length reward of GeometryZero, arXiv 2506.07160, which "promotes longer reasoning chains": its
    formula could not be read.

    Raises:
      ValueError: if cap is below 1 or the unit is unknown.
    """
    if cap < 1:
        raise ValueError(f"cap must be at least 1, got {cap}")
    n = length(completion, unit)
    return {"reward": min(n / cap, 1.0), "length": float(n)}


def repetition(
    prompt: str, completion: str, info: dict, *, n: int = 3, penalty: float = 1.0, unit: str = "words"
) -> dict[str, float]:
    """-penalty (1 - distinct n-grams / n-grams), in [-penalty, 0]; 0 for a text of fewer than n.

    Source: arXiv 2502.03373 (Demystifying Long CoT) as in open-r1's repetition penalty.

    Raises:
      ValueError: if n is below 1 or the unit is unknown.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    parts = split(completion, unit)
    grams = list(zip(*(parts[place:] for place in range(n)), strict=False))
    repeated = 1.0 - len(set(grams)) / len(grams) if grams else 0.0
    return {"reward": -penalty * repeated, "repeated": repeated}


def language(
    prompt: str, completion: str, info: dict, *, script: str = "LATIN", count: str = "words"
) -> dict[str, float]:
    """The share of words (or letters) that are written in a script, in [0, 1]; 0 without any letters.

    Source: the language consistency reward of DeepSeek-R1 (arXiv 2501.12948), which takes the share of words in the
    target language; here the script stands for the language.

    Args:
      prompt: unused.
      completion: the text.
      info: unused.
      script: as in the names of Unicode's characters: "LATIN", "CYRILLIC", "CJK", "HIRAGANA", "ARABIC", "GREEK".
      count: "words" (a word counts if all its letters do) or "characters".

    Raises:
      ValueError: if `count` is unknown.
    """
    parts = split(completion, count)
    parts = [letters for part in parts if (letters := [c for c in part if c.isalpha()])]
    inside = sum(all(unicodedata.name(c, "").startswith(script) for c in letters) for letters in parts)
    share = inside / len(parts) if parts else 0.0
    return {"reward": share, "script_share": share}


def garbled(prompt: str, completion: str, info: dict, *, penalty: float = 1.0, most: float = 0.0) -> dict[str, float]:
    """-penalty if more than a share `most` of the characters are no text: U+FFFD, control, private or unassigned.

    Our reading of the penalty for garbled text of T1, arXiv 2501.11651, which gives no formula.
    """
    text = completion[:MAX_CHARACTERS]
    bad = sum(c == "\ufffd" or unicodedata.category(c) in ("Cc", "Co", "Cn") and c not in "\n\t\r" for c in text)
    share = bad / max(len(text), 1)
    return {"reward": -penalty * float(share > most), "garbled_share": share}


def length(text: str, unit: str) -> int:
    """Words or characters of a text."""
    return len(split(text, unit))


def split(text: str, unit: str) -> Sequence[str]:
    """The words or the characters of a text, of which only the first MAX_CHARACTERS are read.

    Raises:
      ValueError: if the unit is unknown.
    """
    if unit not in UNITS:
        raise ValueError(f"unit={unit!r} is none of {', '.join(UNITS)}")
    return text[:MAX_CHARACTERS].split() if unit == "words" else text[:MAX_CHARACTERS]


@functools.lru_cache(maxsize=32)
def _compiled(regex: str) -> re.Pattern:
    try:
        return re.compile(regex, re.DOTALL)
    except re.error as error:
        raise ValueError(f"regex={regex!r} is not valid: {error}") from error
