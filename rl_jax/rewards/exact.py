"""Exact verifiers: a string, a number, a letter of a multiple choice, a set of items, a label.

All are item terms, (prompt, completion, info, **keywords) -> {"reward", components}. `extract` names how the answer is
found in the completion (rl_jax.rewards.extract); a completion with several different answers scores 0. The right
answer is info["answer"], or another field by `answer_field`.
"""

import re
from fractions import Fraction

from rl_jax.rewards import extract as extraction
from rl_jax.rewards import normal_form, parsing
from rl_jax.rewards.mathematics import right_answer

MAX_NUMBER = 60  # characters
_CURRENCY = re.compile(r"([-+]?)(?:\\?\$+ ?)?(.*)", re.DOTALL)  # "-$5": the sign may stand before the currency
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,2})?(?:/\d+)?", re.ASCII)
# Possessive (*+): blanks in three places beside each other would take the cube of their number.
_LETTER = r"[\s*_\"'$]*+(?:\\(?:text(?:bf|rm|it)?|math(?:bf|rm)|mbox)\s*+\{[\s*_\"'$]*+)?\(?([A-Z])\b\)?(?!\w|')"
_CHOICE = re.compile(
    r"(?:\\boxed\s*+\{|(?:answer|option|choice)s?[\s*_]*+(?:is|are|:)[\s*_:]*+(?:(?:option|choice)\b)?+|<answer>)"
    + _LETTER,
    re.IGNORECASE,
)
_HEADED = re.compile(  # "### Answer" and the letter on a line below it, alone or dressed: (B), B., B:
    r"#[ \t*_]*+(?:[a-z]++[ \t]++)?answer[ \t*_:]*+\n" + _LETTER + r"(?:(?<=\))|(?=[.:)]|[*_\"'$} \t]*+(?:\n|$)))",
    re.IGNORECASE,
)
_PICKED = re.compile(
    r"\b(?:choose|pick|select|with)\s++(?:the\s++)?(?:option|choice|answer)\b" + _LETTER, re.IGNORECASE
)
_ANOTHER_CHOICE = re.compile(r"[\W_]{0,8}(?:(?:or|and)\W{0,8})?([A-H])\b", re.ASCII)  # "A or B", "(A)(B)"
_LONE_CHOICE = re.compile(
    r"[\s*\"'$(\[]*+(?i:(?:answer|option|choice)\b[\s*\"'$(\[]*+)?([A-Z])[\s*\"'$)\].:]*", re.ASCII
)
_LEADING_CHOICE = re.compile(r"\s*\(?([A-Z])[).:]\s")


def match(
    prompt: str,
    completion: str,
    info: dict,
    *,
    extract: str | list[str] = "whole",
    answer_field: str = "answer",
    ignore_case: bool = False,
) -> dict[str, float]:
    """1 if the answer is info's, character by character; blanks at the ends do not count.

    Raises:
      ValueError: if info has no answer or the rule is unknown.
    """
    gold, found = right_answer(info, answer_field), extraction.answers(completion, extract)
    if ignore_case:
        gold, found = gold.casefold(), [text.casefold() for text in found]
    correct = float(bool(found) and all(text == gold for text in found))
    return {"reward": correct, "correct": correct, "answered": float(any(found))}


def number(
    prompt: str,
    completion: str,
    info: dict,
    *,
    extract: str | list[str] = "boxed",
    answer_field: str = "answer",
    absolute: float = 0.0,
    relative: float = 0.0,
) -> dict[str, float]:
    """1 if |a - b| <= max(absolute, relative |b|), in exact fractions; nothing but a number counts.

    Where only one of the two has a percent sign, 42 % is 42 as well as .42, as in rewards.mathematics.

    Args:
      prompt: unused.
      completion: the text.
      info: has the right number b.
      extract: see rl_jax.rewards.extract.
      answer_field: the field of info.
      absolute: tolerance, in the number's unit.
      relative: tolerance, as a share of |b|.

    Raises:
      ValueError: if info's answer is no number.
    """
    gold = read_number(right_answer(info, answer_field))
    if gold is None:
        raise ValueError(f"info[{answer_field!r}] is {info[answer_field]!r:.80}, which is no number")
    bound = max(Fraction(absolute), Fraction(relative) * abs(gold))
    percent = _is_percent(str(info[answer_field]))

    def near(text: str, value: Fraction) -> bool:
        scales = [1] if _is_percent(text) == percent else [1, Fraction(1, 100) if percent else 100]
        return any(abs(value * scale - gold) <= bound for scale in scales)

    found = [(text, read_number(text)) for text in extraction.answers(completion, extract)]
    correct = float(bool(found) and all(value is not None and near(text, value) for text, value in found))
    return {"reward": correct, "correct": correct, "answered": float(any(value is not None for _, value in found))}


def graded_number(
    prompt: str,
    completion: str,
    info: dict,
    *,
    extract: str | list[str] = "boxed",
    answer_field: str = "answer",
) -> dict[str, float]:
    """1 - min(|a - b|, 1) / 2 - min(|a - b| / (|b| + 1e-6), 1) / 2, in [0, 1]; 0 for what is no number.

    Source: RandomCalculation's reward, arXiv 2507.10532.

    Raises:
      ValueError: if info's answer is no number.
    """
    gold = read_number(right_answer(info, answer_field))
    if gold is None:
        raise ValueError(f"info[{answer_field!r}] is {info[answer_field]!r:.80}, which is no number")
    found = {read_number(text) for text in extraction.answers(completion, extract)}
    given = found.pop() if len(found) == 1 else None
    if given is None:
        return {"reward": 0.0, "correct": 0.0, "answered": 0.0}
    error = abs(given - gold)
    graded = 1 - min(error, 1) / Fraction(2) - min(error / (abs(gold) + Fraction(1, 10**6)), 1) / 2
    return {"reward": float(graded), "correct": float(error == 0), "answered": 1.0}


def choice(
    prompt: str, completion: str, info: dict, *, answer_field: str = "answer", options_field: str = "options"
) -> dict[str, float]:
    """1 if the completion chooses the right letter of a multiple choice, and no other.

    A letter counts where it is marked: in a box, in <answer>, behind "answer is", "answer is option" or "correct
    option:", below a heading "Answer"; without such a mark, behind "I choose option", "(B)" or "B." at the start, or
    alone. "Option B" in a reasoning marks nothing. Where info has the options, the text of one of them, alone, is its
    letter. Only what follows the last </think> is read.

    Args:
      prompt: unused.
      completion: the text.
      info: has the right letter; its options, a list of texts or {letter: text}, are optional.
      answer_field: the field of the letter.
      options_field: the field of the options.

    Raises:
      ValueError: if info's answer is no letter, or none of its options.
    """
    gold = right_answer(info, answer_field).strip("(). ").upper()
    options = info.get(options_field) or {}
    if not isinstance(options, dict):
        options = {chr(ord("A") + place): text for place, text in enumerate(options)}
    if not re.fullmatch("[A-Z]", gold) or options and gold not in options:
        raise ValueError(f"info[{answer_field!r}] must be a letter of the options, found {info[answer_field]!r:.80}")
    chosen = chosen_letters(completion, options)
    correct = float(chosen == {gold})
    return {"reward": correct, "correct": correct, "answered": float(bool(chosen))}


def chosen_letters(completion: str, options: dict[str, str]) -> set[str]:
    """The letters that a completion marks as its answer; {} if none."""
    if len(completion) > extraction.MAX_COMPLETION:
        return set()
    completion = parsing.after_thought(completion)
    marked = _letters_behind(_CHOICE, completion) | _letters_behind(_HEADED, completion)
    for inside in extraction.boxed(completion) + extraction.tag(completion):
        letters = re.findall(r"\b[A-Z]\b", inside, re.ASCII)
        marked |= set(letters) if len(letters) > 1 else set()  # a box with several is a choice of several
    if marked := marked or _letters_behind(_PICKED, completion):
        return {letter.upper() for letter in marked}
    for pattern, full in ((_LONE_CHOICE, True), (_LEADING_CHOICE, False)):
        found = pattern.fullmatch(completion) if full else pattern.match(completion)
        if found:
            return {found[1]}
    texts = {normal_form.plain(text): letter for letter, text in options.items()}
    said = [*extraction.answers(completion, ["boxed", "tag", "answer_is"]), completion]
    return {texts[name] for name in map(normal_form.plain, said[:1]) if name in texts}


def _letters_behind(mark: re.Pattern, completion: str) -> set[str]:
    """The letters behind a mark, and those that follow them: "A or B"."""
    letters = set()
    for found in mark.finditer(completion):
        # A lower-case letter counts in a box only: "the answer is a number" chooses nothing.
        if found[1].isupper() or found[0].startswith(("\\boxed", "<")):
            letters.add(found[1])
            more = _ANOTHER_CHOICE.match(completion, found.end())
            letters |= {more[1]} if more else set()
    return letters


def items(
    prompt: str,
    completion: str,
    info: dict,
    *,
    extract: str | list[str] = "whole",
    answer_field: str = "answer",
    separator: str = ",",
    partial: bool = False,
    ignore_case: bool = True,
) -> dict[str, float]:
    """A set of items, in any order: 1 if it is the right one, or with `partial` the F1 of its items.

    Args:
      prompt: unused.
      completion: the text; its answer is a list with separators.
      info: has the right items, a list of texts.
      extract: see rl_jax.rewards.extract.
      answer_field: the field of info.
      separator: between items.
      partial: whether a part of the items is paid; one named twice lowers the precision.
      ignore_case: whether "Red" is "red".

    Returns:
      reward; correct, precision and recall.

    Raises:
      ValueError: if info has no list of texts.
    """
    gold = info.get(answer_field)
    if not isinstance(gold, list) or not gold or not all(isinstance(item, str | int | float) for item in gold):
        raise ValueError(f"info[{answer_field!r}] must be a list of texts, found {gold!r:.80}")

    def fold(text: str) -> str:
        return text.strip().casefold() if ignore_case else text.strip()

    right, found = {fold(str(item)) for item in gold}, extraction.answers(completion, extract)
    given = [fold(part) for part in found[0].strip("{}[]()").split(separator)] if len(found) == 1 else []
    given = [item for item in given if item]
    hits = len(right & set(given))
    precision, recall = hits / max(len(given), 1), hits / len(right)
    correct = float(hits == len(right) == len(given))
    graded = 2 * precision * recall / (precision + recall) if hits else 0.0
    return {"reward": graded if partial else correct, "correct": correct, "precision": precision, "recall": recall}


def within(
    prompt: str,
    completion: str,
    info: dict,
    *,
    extract: str | list[str] = "boxed",
    interval_field: str = "interval",
    closed: bool = True,
) -> dict[str, float]:
    """1 if the answer is one number inside of info's interval [low, high].

    Raises:
      ValueError: if info has no interval of two numbers with low <= high.
    """
    bounds = info.get(interval_field)
    ends = [read_number(str(end)) for end in bounds] if isinstance(bounds, list) else []
    if len(ends) != 2 or None in ends or ends[0] > ends[1]:
        raise ValueError(f"info[{interval_field!r}] must be [low, high], found {bounds!r:.80}")
    found = [read_number(text) for text in extraction.answers(completion, extract)]
    low, high = ends
    inside = [v is not None and (low <= v <= high if closed else low < v < high) for v in found]
    correct = float(bool(inside) and all(inside))
    return {"reward": correct, "correct": correct, "answered": float(any(v is not None for v in found))}


def label(
    prompt: str, completion: str, info: dict, *, answer_field: str = "answer", think: bool = True
) -> dict[str, float]:
    """Classification: 1 for the right label, plus 1 for the form of the answer if the model is to think.

    think: "<think>...</think><answer>LABEL</answer>", reward = correct + format. Without: the completion is the bare
    label, and the reward is whether it is the right one (No-Thinking-RL). Source: arXiv 2503.16188.

    Raises:
      ValueError: if info has no label.
    """
    gold = normal_form.plain(right_answer(info, answer_field))
    if not think:
        correct = float(completion.strip().casefold() == gold)
        return {"reward": correct, "correct": correct, "format": correct}
    found = extraction.answers(completion, "tag")
    correct = float(bool(found) and all(normal_form.plain(text) == gold for text in found))
    formed = float(well_formed(completion, ("think", "answer")))
    return {"reward": correct + formed, "correct": correct, "format": formed}


def well_formed(text: str, tags) -> bool:
    """Whether the text is <a>...</a><b>...</b>...: each tag once, in order, not empty, nothing outside."""
    place, text = 0, text.strip()
    for name in tags:
        opening, closing = f"<{name}>", f"</{name}>"
        end = text.find(closing, place)
        if not text.startswith(opening, place) or end < 0 or not text[place + len(opening) : end].strip():
            return False
        if text.count(opening) != 1 or text.count(closing) != 1:
            return False
        place = end + len(closing)
        place += len(text[place:]) - len(text[place:].lstrip())
    return place == len(text)


def read_number(text: str) -> Fraction | None:
    """The number that a text is, as an exact fraction: "1,080", "-$3.50", "-1/2", "2e3", "50%"; None for another."""
    text = text.strip().rstrip(".").replace("−", "-").strip("*` ").rstrip("$ ").removesuffix("\\")
    sign, text = _CURRENCY.fullmatch(text).groups()
    percent = _is_percent(text)
    text = normal_form.thousands(sign + text.rstrip("%\\ "))
    if len(text) > MAX_NUMBER or not _NUMBER.fullmatch(text):
        return None
    top, _, bottom = text.partition("/")
    if bottom and int(bottom) == 0:
        return None
    value = Fraction(top) / (int(bottom) if bottom else 1)
    return value / 100 if percent else value


def _is_percent(text: str) -> bool:
    return text.rstrip(".* `$").endswith("%")
