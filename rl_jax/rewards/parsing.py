"""Reads the answer out of a completion: tags, code fences, JSON. Nothing here raises because of a completion."""

import json
import math
import re
from typing import Any

MAX_CHARS = 100_000  # of text that is read as JSON
MISSING = object()  # "no JSON here", which None would confuse with null


def blocks(text: str, opening: str, closing: str) -> list[str]:
    """What stands between each opening and the next closing mark; in time linear in the text, unlike a regex."""
    found, start = [], text.find(opening)
    while start >= 0:
        end = text.find(closing, start + len(opening))
        if end < 0:
            break
        found.append(text[start + len(opening) : end])
        start = text.find(opening, end + len(closing))
    return found


def tagged(text: str, tag: str) -> str | None:
    """The text between the last <tag> and the first </tag> after it, stripped; None without such a pair."""
    _, opened, rest = text.rpartition(f"<{tag}>")
    inner, closed, _ = rest.partition(f"</{tag}>")
    return inner.strip() if opened and closed else None


def after_thought(text: str) -> str:
    """What follows the last </think>; all of the text without one, so a thought that is never closed is read, too."""
    return text.rpartition("</think>")[2]


def answer(text: str) -> str:
    """The last <answer>...</answer>; without one, all after </think>, or all of the text. Stripped."""
    found = tagged(text, "answer")
    return (after_thought(text) if found is None else found).strip()


def code_blocks(text: str) -> list[str]:
    """What stands between ``` marks, without the language beside the first mark, each stripped."""
    found = []
    for block in blocks(text, "```", "```"):
        language, newline, code = block.partition("\n")
        found.append((code if newline and re.fullmatch(r"[a-zA-Z0-9+#]*\s*", language) else block).strip())
    return found


def fenced(text: str) -> str:
    """The last code block between ``` marks, without the language beside the first mark; else the text. Stripped."""
    return (code_blocks(text) or [text.strip()])[-1]


def read_json(text: str) -> Any:
    """The value that `text` spells in JSON.

    Stricter than json.loads: no nan or infinity, which are not JSON, and no object that names a key twice.

    Returns:
      The value, or MISSING if the text is no JSON, nests too deeply or is longer than MAX_CHARS.
    """
    if len(text) > MAX_CHARS:
        return MISSING
    try:
        value = json.loads(text, parse_constant=_refuse, object_pairs_hook=_object, parse_float=_finite)
    except (ValueError, RecursionError):  # an integer of over 4,300 digits is a ValueError
        return MISSING
    return value


def find_json(text: str) -> Any:
    """The JSON value of an answer: its last code block, else the whole answer, else its last {...} or [...].

    Returns:
      The value, or MISSING.
    """
    inner = answer(text)
    value = read_json(fenced(inner))
    if value is not MISSING:
        return value
    decoder = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_object, parse_float=_finite)
    found, end = MISSING, 0
    for start in [match.start() for match in re.finditer(r"[{\[]", inner[:MAX_CHARS])][:200]:
        if start < end:  # inside the value before it
            continue
        try:
            found, end = decoder.raw_decode(inner, start)
        except (ValueError, RecursionError):
            continue
    return found


def same(first: Any, second: Any) -> bool:
    """Whether two JSON values are equal. 1 and 1.0 are, 1 and true are not, the order of keys does not matter."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(value, second[key]) for key, value in first.items())
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


def _refuse(constant: str):
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


def _object(pairs: list) -> dict:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is there twice")
    return result
