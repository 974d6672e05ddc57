"""Normalises the text of a mathematical answer: LaTeX layout, signs, units and words around a number.

The rules are prm800k's (dollar signs, \\left, \\dfrac, \\text, degrees, units, thousands separators), written so that a
word is only dropped where it cannot change the answer: "12 apples" is 12, "5 million" and "not 5" are not 5. Letters
behind a number are variables (6xy, 5 m) unless they are a known unit (5cm), a word, or in \\text{} (5\\text{ m}).
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
_MARK = "\x01"  # before each word that stood in \text{}
_EMPHASIS = re.compile(r"\*\*([^*]+)\*\*|`([^`]+)`")
_BOX = re.compile(r"(?:\$|\\\(|\\\[)*+ ?\\f?boxed\s*\{(.*)\} ?(?:\$|\\\)|\\\])*+", re.DOTALL)
_LAYOUT = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|q?quad)(?![A-Za-z])")
_DELIMITERS = re.compile(r"\\\$|\$|\\\(|\\\)|\\\[|\\\]|£|€")
_TEXT = re.compile(
    r"\\(?:text|textnormal|mbox|textbf|textit|textrm|mathrm|mathbf|operatorname|rm)\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
)
_WORD = re.compile(r"(?<![\\A-Za-z])(?!(?:and|or)(?![A-Za-z]))[A-Za-z]+")
_DEGREES = re.compile(r"\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\s*\\degree\b")
_PERCENT = re.compile(r"\s*(?:\\%|%|(?<![A-Za-z])\x01?(?:percent|per \x01?cent|pct))\s*$")
_POWER = r" ?\^ ?(?:\{-?[1-3]\}|-?[1-3])"
_UNITS = re.compile(
    rf"^(.*?[^ ]) ?(?<![\\\x01A-Za-z])((?:\x01?[A-Za-z]{{1,20}}+(?:{_POWER})?+[ ./*]{{0,3}}+){{1,6}}+)$", re.ASCII
)
_UNIT = re.compile(rf"(\x01?)([A-Za-z]++)({_POWER})?")
_VALUE = re.compile(r"(?:[\d)}\]!]|\\pi)$")  # the end of what has a unit; a unit in \text{} may follow a variable, too
_PLAIN = re.compile(r"[-+\d.,/:]+", re.ASCII)
_VARIABLE = re.compile(r"(?:^|[^\\\x01A-Za-z])[A-Za-z]{1,2}$")
_BLANKS = re.compile(r"(?<!\d)\s+|\s+(?!\d)")  # not those between digits
_SCIENTIFIC = re.compile(r"([-+]?(?:\d+(?:\.\d*)?|\.\d+))[eE]\+?(-?\d{1,3})", re.ASCII)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])", re.ASCII)
_FUNCTION_WORDS = re.compile(r"(?<![\\A-Za-z])(?:sqrt|pi|sin|cos|tan|log|ln|infty|theta)(?![A-Za-z])")
_IN_SET = re.compile(r"^[A-Za-z]\s*\\in(?![a-z])\s*")
# Words that change what they stand beside; with one of these nothing is dropped.
_CHANGING = set(
    "true false negative positive "
    "or and not no nor but if is are was isn either maybe between to wrong incorrect less more than about over under "
    "never except without unless xor below above fewer approximately roughly nearly almost "
    "percent times base mod pi sqrt sin cos tan log ln exp inf nan infinity plus minus "
    "even odd squared cubed factorial doubled tripled halved score basis bps remainder choose gross k bn mil "
    "kilo mega giga tera milli micro nano".split()
)
_SCALES = {  # likewise, in the plural, too
    word + end
    for words, ends in (
        ("half halve third quarter fifth eighth ninth twelfth one two three five eight nine", [""]),
        ("dozen lakh lac crore", [""]),
        ("zero four six seven ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen hundred "
         "thousand million billion trillion", ["", "th"]),
        ("twent thirt fort fift sixt sevent eight ninet", ["y", "ieth"]),
    )
    for word in words.split()
    for end in ends
}  # fmt: skip
_MODIFIERS = {"square", "sq", "cubic", "cu", "per", "of"}  # of the word beside them
_LETTERS = set("msghlLNJWV")  # units of one letter, only in \text{}: elsewhere a variable; M and K may be a million
_SAME_UNITS = {
    unit: names[0]
    for names in (
        ("cm", "centimeter", "centimetre"), ("m", "meter", "metre"), ("km", "kilometer", "kilometre"),
        ("mm", "millimeter", "millimetre"), ("in", "inch", "inche"), ("ft", "foot", "feet"), ("mi", "mile"),
        ("s", "sec", "second"), ("min", "minute"), ("h", "hr", "hour"), ("day",), ("week",), ("month",), ("year",),
        ("g", "gram"), ("kg", "kilogram"), ("lb", "pound"), ("oz", "ounce"), ("dollar", "usd"), ("cent",),
        ("degree", "deg"), ("radian", "rad"), ("l", "liter", "litre"), ("ml", "milliliter", "millilitre"), ("mph",),
        ("euro", "eur"), ("am",), ("pm",), ("N", "newton"), ("J", "joule"), ("W", "watt"), ("V", "volt"), ("mg",),
    )
    for unit in names
}  # fmt: skip
_MONEY = re.compile(r"\\\$|^-?\$(?=[^$]*$)|€|£")  # one dollar sign alone is no delimiter
_CURRENCIES = {"€": "euro", "£": "lb"}  # else dollar


class Normal(NamedTuple):
    """A normalised answer.

    Attributes:
      text: what is left to read as mathematics.
      unit: the known unit that was dropped, or "".
      percent: whether a percent sign was dropped.
      money: the currency of a sign or a unit, "cent" is one of its own; or "".
    """

    text: str
    unit: str
    percent: bool
    money: str


@functools.lru_cache(maxsize=4096)
def normalise(text: str) -> Normal:
    """The answer without its layout, currency, degrees and units."""
    text = " ".join(text.split()).rstrip(".").strip()  # runs of blanks would make the patterns slow
    match = _EMPHASIS.fullmatch(text)
    text = (match[1] or match[2]).rstrip(". ") if match else text
    match = _BOX.fullmatch(text)
    text = match[1] if match else text
    sign = _MONEY.search(text)
    text = text.replace(_MARK, " ").replace("p.m", "pm").replace("a.m", "am")
    text = _DELIMITERS.sub("", text.replace("\\\\", _NEW_ROW))  # else "\\\\ " loses its second backslash
    text = _ANY_REPLACED.sub(lambda match: _REPLACED[match[0]], text)
    text, degrees = _DEGREES.subn("", _LAYOUT.sub("", text))
    text = " ".join(_TEXT.sub(_marked, text).split())
    text, percent = _PERCENT.subn("", text)
    text, unit = _without_unit(_IN_SET.sub("", _words(text)).strip(), bool(degrees))
    text = text.replace(_MARK, "").replace(_NEW_ROW, "\\\\").strip().rstrip(".").strip()
    match = _SCIENTIFIC.fullmatch(text)
    text = f"{match[1]}*10^{{{match[2]}}}" if match else text
    money = next((word for word in unit.split() if word in ("dollar", "cent", "euro", "lb")), "")
    money = _CURRENCIES.get(sign[0], "dollar") if sign and money != "cent" else money
    return Normal(text, unit or ("degree" if degrees else ""), bool(percent), money)


def same_units(right: Normal, other: Normal) -> bool:
    """Whether the units of two answers do not contradict each other; one may lack it."""
    for first, second in ((right.unit, other.unit), (right.money, other.money)):
        if first and second and first != second:
            return False
    return True


def thousands(text: str) -> str:
    """1,080 as 1080; in the brackets of a list a comma separates."""
    if any(bracket in text for bracket in ("(", "[", r"\{")):
        return text
    return _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)


def is_thousands(text: str) -> bool:
    """Whether a text is one number with commas between its thousands."""
    return _THOUSANDS.fullmatch(text.lstrip("+-").partition(".")[0]) is not None


def plain(text: str) -> str:
    """The answer as words: lower case, without LaTeX's commands for text, blanks and punctuation at its ends."""
    text = _TEXT.sub(lambda match: match[1], _DELIMITERS.sub("", text.strip()))
    return re.sub(r"\s+", " ", text).strip(string.punctuation.replace("-", "") + " ").casefold()


def compact(text: str) -> str:
    """The normalised answer without blanks, to compare as a string; those between digits stay."""
    return _BLANKS.sub("", normalise(text).text)


def spelled(text: str) -> str:
    """The answer with its units, without blanks and LaTeX's commands for text: 5\\text{ m} is 5 m."""
    return _BLANKS.sub("", _TEXT.sub(lambda match: match[1], _DELIMITERS.sub("", text)))


def _words(text: str) -> str:
    """Words for signs: "1 and 2" is a list, "sqrt" and "pi" are commands."""
    text = re.sub(r"\s*,?\s*\b(?:and|or)\b\s*", ",", text)
    return _FUNCTION_WORDS.sub(lambda match: "\\" + match[0] + " ", text)


def _marked(match: re.Match) -> str:
    """What stood in \\text{}, with a mark before each word; emphasis and operators are no text."""
    emphasis = match[0].startswith(("\\mathbf", "\\textbf", "\\textit", "\\operatorname"))
    return f" {match[1]} " if emphasis else f" {_WORD.sub(lambda word: _MARK + word[0], match[1])} "


def _without_unit(text: str, degrees: bool) -> tuple[str, str]:
    """(the text without the units and words behind its number, the names of the known units)."""
    match = _UNITS.match(text)
    if not match:
        return text, ""
    words = list(_UNIT.finditer(text, match.start(2)))
    if any(_changes(word[2].lower()) for word in words):
        return text, ""
    names = [_unit_name(word, text, degrees) for word in words]
    if match.end(1) == match.start(2) and not words[0][1] and not _PLAIN.fullmatch(match[1]):
        names[0] = None  # of x^2min the letters are variables
    start = 0
    if None in names or not _VALUE.search(match[1]):  # of 5x\text{ cm} only the known unit in \text{} goes
        start = max((place + 1 for place, word in enumerate(words) if not word[1]), default=0)
        before = text[: words[start].start()].rstrip() if start < len(words) else ""
        if not any(names[start:]) or None in names[start:] or not (_VALUE.search(before) or _VARIABLE.search(before)):
            return text, ""
    if all(word[2].lower() in _MODIFIERS for word in words[start:]):
        return text, ""
    return text[: words[start].start()].rstrip(), " ".join(dict.fromkeys(filter(None, names[start:])))


def _unit_name(word: re.Match, text: str, degrees: bool) -> str | None:
    """The name of a known unit, "" for another word that may be dropped, None for what may be a variable."""
    marked, spelled, lower = bool(word[1]), word[2], word[2].lower()
    blank = marked or text[word.start() - 1] == " "
    if len(spelled) == 1:
        is_unit = marked and (spelled in _LETTERS or degrees and spelled in "CF")
        return _SAME_UNITS.get(lower, spelled) if is_unit else None
    if lower in ("am", "pm") and not (blank or ":" in text):
        return None
    known = _SAME_UNITS.get(lower) or _SAME_UNITS.get(lower.removesuffix("s"))
    if known or blank and lower in (*_MODIFIERS, "unit", "units"):
        return known or ""
    # Variables are written in the order of the alphabet, as in 3 abc; words have a vowel.
    is_word = len(lower) > 2 and (marked or set(lower) & set("aeiouy") and sorted(lower) != list(lower))
    return "" if is_word and blank and not word[3] else None


def _changes(word: str) -> bool:
    return word in _CHANGING or word in _SCALES or word.removesuffix("s") in _SCALES
