"""Normalises the text of a mathematical answer: LaTeX layout, signs, units and words around a number.

The rules are prm800k's (dollar signs, \\left, \\dfrac, \\text, degrees, units, thousands separators), written so that a
word is only dropped where it cannot change the answer: "12 apples" is 12, "5 million" and "not 5" are not 5.
"""

import functools
import re
import string
from typing import NamedTuple

_REPLACED = dict((
    ("−", "-"), ("–", "-"), ("×", "*"), ("·", "*"), ("÷", "/"), ("√", r"\sqrt "), ("π", r"\pi "), ("∞", r"\infty "),
    ("≤", r"\le "), ("≥", r"\ge "), ("≠", r"\ne "), ("∪", r"\cup "), ("±", r"\pm "), ("°", r"^\circ"), ("²", "^2"),
    ("³", "^3"), ("½", r"\frac{1}{2}"), ("θ", r"\theta "), ("∅", r"\emptyset "),
    (r"\leqslant", r"\le"), (r"\geqslant", r"\ge"), (r"\leq", r"\le"), (r"\geq", r"\ge"), (r"\neq", r"\ne"),
    (r"\lbrace", r"\{"), (r"\rbrace", r"\}"), (r"\lbrack", "["), (r"\rbrack", "]"), (r"\varnothing", r"\emptyset"),
    (r"\dfrac", r"\frac"), (r"\tfrac", r"\frac"), (r"\cfrac", r"\frac"), (r"\dbinom", r"\binom"),
    (r"\cdot", "*"), (r"\times", "*"), (r"\div", "/"), (r"\lvert", "|"), (r"\rvert", "|"), (r"\vert", "|"),
    ("{,}", ","), (r"\,", " "), (r"\!", ""), (r"\;", " "), (r"\:", " "), (r"\ ", " "), ("~", " "), ("**", "^"),
))  # fmt: skip
_ANY_REPLACED = re.compile(
    "|".join(re.escape(old) + ("(?![A-Za-z])" if old[-1].isalpha() and old[0] == "\\" else "") for old in _REPLACED)
)
_NEW_ROW = "\0"
_EMPHASIS = re.compile(r"\*\*([^*]+)\*\*|`([^`]+)`")
_BOX = re.compile(r"(?:\$|\\\(|\\\[)*+ ?\\f?boxed\s*\{(.*)\} ?(?:\$|\\\)|\\\])*+", re.DOTALL)
_LAYOUT = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|q?quad)(?![A-Za-z])")
_DELIMITERS = re.compile(r"\\\$|\$|\\\(|\\\)|\\\[|\\\]|£|€")
TEXT = r"\\(?:text|textnormal|mbox|textbf|textit|textrm|mathrm|mathbf|operatorname|rm)\s*+\{"
_TEXT = re.compile(TEXT + r"([^{}]*)\}")
_DEGREES = re.compile(r"\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\s*\\degree\b")
_PERCENT = re.compile(r"\s*(?:\\%|%|(?<![A-Za-z])per ?cent)\s*$")
_TEXT_PERCENT = re.compile(rf"{TEXT} ?(?:\\?%|per ?cent) ?\}}$")
_DOLLARS = re.compile(r"\$?-?\\\$")  # a plain $ may begin a formula
_POWER = r"(?:\^ ?\{?-?[123]\}?)?"
_UNITS = re.compile(
    r"^(.*?[\d)}\]!])( ?)((?:[A-Za-z]{2,20}[ ./]{0,3}){1,4}(?:(?<=/)[A-Za-z])?)" + _POWER + "$", re.ASCII
)
# \text{ m/s}^2, \mathrm{km}/\mathrm{h}: all letters of the end stand in commands for text.
_TEXT_UNITS = re.compile(
    rf"^(.*?(?:[\d)}}\]!]|\\pi)) ?((?:{TEXT}[A-Za-z ./^\d]{{1,60}}\}} ?{_POWER} ?/? ?){{1,4}})$", re.ASCII
)
THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])", re.ASCII)
_FUNCTION_WORDS = re.compile(r"(?<![\\A-Za-z])(?:sqrt|pi|sin|cos|tan|log|ln|infty|theta)(?![A-Za-z])")
_IN_SET = re.compile(r"^[A-Za-z]\s*\\in(?![a-z])\s*")
_SHORT_WORDS = {"sq", "cu", "per", "men"}
# Words that change what they stand beside; with one of these nothing is dropped.
_CHANGING = set(
    "true false negative positive "
    "or and not no nor but if is are was isn either maybe between to wrong incorrect less more than about over under "
    "hundred thousand million billion trillion dozen half third quarter percent times base mod pi sqrt sin cos tan "
    "log ln exp inf nan infinity plus minus squared cubed score even odd prime composite lakh crore "
    "halve fourth fifth sixth seventh eighth ninth tenth hundredth thousandth millionth billionth "
    "zero one two three four five six seven eight nine ten eleven twelve twenty thirty fifty".split()
)
_SAME_UNITS = {
    unit: names[0]
    for names in (
        ("cm", "centimeter", "centimetre"), ("m", "meter", "metre"), ("km", "kilometer", "kilometre"),
        ("mm", "millimeter", "millimetre"), ("in", "inch", "inche"), ("ft", "foot", "feet"), ("mi", "mile"),
        ("s", "sec", "second"), ("min", "minute"), ("h", "hr", "hour"), ("day",), ("week",), ("month",), ("year",),
        ("g", "gram"), ("kg", "kilogram"), ("lb", "pound"), ("oz", "ounce"), ("dollar", "usd"), ("cent",),
        ("degree", "deg"), ("radian", "rad"), ("l", "liter", "litre"), ("ml", "milliliter", "millilitre"), ("mph",),
    )
    for unit in names
}  # fmt: skip


class Normal(NamedTuple):
    """A normalised answer.

    Attributes:
      text: what is left to read as mathematics.
      unit: the known unit that was dropped, or "".
      percent: whether a percent sign was dropped.
    """

    text: str
    unit: str
    percent: bool


@functools.lru_cache(maxsize=4096)
def normalise(text: str) -> Normal:
    """The answer without its layout, currency, degrees and units.

    A unit is what stands in commands for text at the end, behind a number; without such a command known units and
    words of four letters or more, the latter behind a blank: xy in 6xy are factors.
    """
    text = " ".join(text.split()).rstrip(".").strip()  # runs of blanks would make the patterns slow
    match = _EMPHASIS.fullmatch(text)
    text = (match[1] or match[2]).rstrip(". ") if match else text
    match = _BOX.fullmatch(text)
    text = match[1] if match else text
    dollars = _DOLLARS.match(text)
    text = _DELIMITERS.sub("", text.replace("\\\\", _NEW_ROW))  # else "\\\\ " loses its second backslash
    text = _ANY_REPLACED.sub(lambda match: _REPLACED[match[0]], text)
    text, degrees = _DEGREES.subn("", _LAYOUT.sub("", text))
    text, percent = _PERCENT.subn("", _TEXT_PERCENT.sub("%", text))
    text, unit = _without_text_unit(text.strip())
    text = _IN_SET.sub("", _words(_TEXT.sub(lambda match: f" {match[1]} ", text).strip()))
    text, bare_unit = _without_unit(" ".join(text.split()))
    unit = " ".join(filter(None, ("dollar" if dollars else "", unit, bare_unit)))
    text = text.replace(_NEW_ROW, "\\\\").strip().rstrip(".").strip()
    return Normal(text, unit or ("degree" if degrees else ""), bool(percent))


def thousands(text: str) -> str:
    """1,080 as 1080; in the brackets of a list a comma separates."""
    if any(bracket in text for bracket in ("(", "[", r"\{")):
        return text
    return THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)


def plain(text: str) -> str:
    """The answer as words: lower case, without LaTeX's commands for text, blanks and punctuation at its ends."""
    text = _TEXT.sub(lambda match: match[1], _DELIMITERS.sub("", text.strip()))
    return re.sub(r"\s+", " ", text).strip(string.punctuation.replace("-", "") + " ").casefold()


def compact(text: str) -> str:
    """The normalised answer without blanks, to compare as a string; those between digits stay."""
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", normalise(text).text)


def _words(text: str) -> str:
    """Words for signs: "1 and 2" is a list, "sqrt" and "pi" are commands."""
    text = re.sub(r"\s*,?\s*\b(?:and|or)\b\s*", ",", text)
    return _FUNCTION_WORDS.sub(lambda match: "\\" + match[0] + " ", text)


def _without_text_unit(text: str) -> tuple[str, str]:
    """The text without the unit in commands for text at its end, and the unit if it is known."""
    match = _TEXT_UNITS.match(text)
    words = _unit_words(_TEXT.sub(lambda inside: f" {inside[1]} ", match[2])) if match else None
    return (text, "") if words is None else (match[1], _known(words))


def _without_unit(text: str) -> tuple[str, str]:
    """The text without the unit or the word at its end, and the unit if it is known."""
    match = _UNITS.match(text)
    words = _unit_words(match[3]) if match else None
    if words is None:
        return text, ""
    blank = bool(match[2])
    for place, word in enumerate(words):
        is_word = (blank or place > 0) and len(word) > 3 and bool(set(word) & set("aeiou"))
        if not (is_word or word in _SHORT_WORDS or _known([word])):
            return text, ""
    return match[1], _known(words)


def _unit_words(text: str) -> list[str] | None:
    """The words of what may be a unit; None if one of them changes what it stands beside."""
    words = re.findall(r"[A-Za-z]+", text.lower())
    changing = any(word in _CHANGING or word.removesuffix("s") in _CHANGING for word in words)
    return None if changing or not words else words


def _known(words: list[str]) -> str:
    """The known units among words."""
    found = [_SAME_UNITS[name] for word in words for name in (word, word.removesuffix("s")) if name in _SAME_UNITS]
    return " ".join(dict.fromkeys(found))
