"""Finds the final answers that a completion gives, by a named rule: boxed, hash, answer_is, tag, last_number, whole.

A rule returns every answer that it finds, since a completion that gives two must not be paid for one of them. Only what
follows the last </think> is read; a thought that is never closed is read like any text (its "<think>" often stands in
the prompt, where no rule can see it).
"""

import re

from rl_jax.rewards import parsing

MAX_COMPLETION = 200_000  # characters; a longer completion has no answer
MAX_ANSWERS = 16  # more are no answer

# A box to be filled in, of the question or the instruction: empty, a phantom, dots.
_PLACEHOLDER = re.compile(r"\s*+(?:(?:\\[hv]?phantom\{[^{}]*\}|\\[lc]?dots(?![A-Za-z])|\.\.\.|…)\s*+)*+")
_BOXED = re.compile(r"\\(?:boxed|fbox)")
_HASH = re.compile(r"####[ \t]*([^\n]*)")
_ANSWER_IS_WORDS = re.compile(r"\banswers?[ *_]{0,4}(?:is|are|:)(?!\w)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\.(?=[*_`]*+(?:\s|$))")
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?|[-+]?\.\d+", re.ASCII)


def boxed(text: str) -> list[str]:
    """The contents of every \\boxed{...}, with its braces matched; one that is never closed is an empty answer.

    A placeholder is no box: \\boxed{}, \\boxed{...}, \\boxed{\\ldots}, \\boxed{\\phantom{0}}.
    """
    found, place = [], 0
    while True:
        mark = _BOXED.search(text, place)
        if not mark or len(found) > MAX_ANSWERS:
            return found
        place = mark.end()
        start = place + len(text[place : place + 8]) - len(text[place : place + 8].lstrip())
        if not text.startswith("{", start):
            found.append(text[start : start + 1])
            continue
        end = _closing(text, start)
        if end < 0:
            return [*found, ""]
        inside, place = text[start + 1 : end], end
        if not _PLACEHOLDER.fullmatch(inside):
            found.append(inside)


def _closing(text: str, start: int) -> int:
    """Where the brace at `start` is closed, or -1."""
    depth, place = 0, start
    while place < len(text):
        if text[place] == "\\":
            place += 1  # an escaped brace is a character
        elif text[place] in "{}":
            depth += 1 if text[place] == "{" else -1
            if depth == 0:
                return place
        place += 1
    return -1


def hash_mark(text: str) -> list[str]:
    """What stands behind every "####", to the end of its line: GSM8K's mark; [] if nothing does behind any."""
    return _unless_all_empty([_undressed(part) for part in _HASH.findall(text)])


def answer_is(text: str) -> list[str]:
    """What stands behind "answer is", "answers are" or "answer:", to the end of the sentence or line.

    [] if nothing does behind any: the answer of "The answer is:" before a line break is for another rule to find.
    """
    parts = [_undressed(part.partition("\n")[0].lstrip(" \t:*_")) for part in _ANSWER_IS_WORDS.split(text)[1:]]
    return _unless_all_empty([_undressed(_SENTENCE_END.split(part, maxsplit=1)[0]) for part in parts])


def _unless_all_empty(found: list[str]) -> list[str]:
    return found if any(found) else []


def _undressed(text: str) -> str:
    """The text without Markdown's emphasis at its ends, and without a box that holds all of it.

    "**Answer:** 42" and "**Answer: 42**" leave one half of a pair.
    """
    bare = text.strip().lstrip("*_`")
    if bare != text.strip() or bare.endswith(("**", "__", "`")):
        bare = bare.rstrip("*_`")
    alone = bare.strip("$ ").removeprefix("\\(").removesuffix("\\)").strip()
    inside = boxed(alone)
    return inside[0] if len(inside) == 1 and alone == rf"\boxed{{{inside[0]}}}" else bare


def tag(text: str) -> list[str]:
    """What stands in <answer>...</answer>; one that is never closed is an empty answer."""
    found, place = [], text.find("<answer>")
    while place >= 0 and len(found) <= MAX_ANSWERS:
        end = text.find("</answer>", place)
        if end < 0:
            return [*found, ""]
        found.append(text[place + len("<answer>") : end])
        place = text.find("<answer>", end)
    return found


def last_number(text: str) -> list[str]:
    """The last number of the text. Weak: a completion that counts up ends in a right answer by chance."""
    return _NUMBER.findall(text)[-1:]


def whole(text: str) -> list[str]:
    """The text itself."""
    return [text]


RULES = {
    "boxed": boxed,
    "hash": hash_mark,
    "answer_is": answer_is,
    "tag": tag,
    "last_number": last_number,
    "whole": whole,
}


def answers(completion: str, rules: str | list[str]) -> list[str]:
    """The answers of the first of the rules that finds any, without surrounding blanks; [] if none does.

    Args:
      completion: the text.
      rules: a name of RULES, or several, tried in order.

    Raises:
      ValueError: if a rule is unknown.
    """
    rules = [rules] if isinstance(rules, str) else list(rules)
    for rule in rules:
        if rule not in RULES:
            raise ValueError(f"extract={rule!r} is no rule; the rules are {', '.join(RULES)}")
    if len(completion) > MAX_COMPLETION:
        return []
    completion = parsing.after_thought(completion)
    for rule in rules:
        found = list(dict.fromkeys(text.strip() for text in RULES[rule](completion)))
        if found:
            return found if len(found) <= MAX_ANSWERS else []
    return []
