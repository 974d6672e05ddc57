"""How long a regular expression of a tokenizer.json may take: read off the expression, before it meets a text. No jax.

The tokenizers package runs its expressions (of the steps Split and Replace) in Oniguruma, which backtracks: a place
where nothing matches is left only after all ways to read it were tried. Of n characters there are about

    n^d    d repeats without an end that something after them can refuse, one after the other: a*a*b has d = 2
    c^n    such a repeat around something that itself can be read in several ways: (a|a)*b, (a*b?)*c

The package gives up after 10^7 tries of one match, which of n^2 at every place of a text is minutes and of the others
is an error that depends on the text. Expressions of published tokenizers have d <= 1. Added tokens are no expressions:
they are found by an automaton, in linear time.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rl_jax.data.readers import DataError

MAX_DEGREE = 1
MANY = 64  # repeats with at least so many turns count as ones without an end
FEW = 8  # alternatives taken up to so many times are no danger
MAX_LENGTH = 20_000  # characters of an expression
MAX_DEPTH = 100  # brackets in brackets
_COUNTS = re.compile(r"\{(\d*)(,?)(\d*)\}")
_ESCAPE = re.compile(r"\\(?:[pP]\{[^}]*\}|x\{[^}]*\}|x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{4}|k<[^>]*>|.)", re.DOTALL)
_OPENS = re.compile(r"\((?:\?(?:#[^)]*\)|<?[=!]|[:>]|<[^>]*>|'[^']*'|[a-zA-Z-]*:|[a-zA-Z-]*\)))?")


class Part(NamedTuple):
    """A piece of an expression.

    Attributes:
      empty: whether it can match nothing, and so never refuses.
      varies: whether it can read one text in several ways.
      degree: d if something after it can refuse.
      closed: d if nothing after it can.
    """

    empty: bool
    varies: bool
    degree: float
    closed: float


CHARACTER, NOTHING = Part(False, False, 0, 0), Part(True, False, 0, 0)


def check(description: Mapping, path: str) -> None:
    """Checks the expressions of normalizer, pre-tokenizer and decoder.

    Args:
      description: the content of a tokenizer.json.
      path: of the file, for the message.

    Raises:
      DataError: if one of them can take much longer than a text is long.
    """
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        for pattern in _patterns(description.get(name)):
            shown = f"{path}, field {name!r}: the expression {pattern!r:.80}"
            if len(pattern) > MAX_LENGTH:
                raise DataError(f"{shown} has {len(pattern)} characters, over {MAX_LENGTH}")
            try:
                degree = degree_of(pattern)
            except RecursionError:
                raise DataError(f"{shown} has brackets nested over {MAX_DEPTH} deep") from None
            if degree > MAX_DEGREE:
                growth = "exponentially" if math.isinf(degree) else f"with the power {degree + 1:g} of its length"
                raise DataError(
                    f"{shown} backtracks: its time can grow {growth} with a text's length. Write it with one repeat "
                    "per alternative, or with possessive ones (a*+, (?>...)), which do not backtrack"
                )


def degree_of(pattern: str) -> float:
    """d of the whole expression, math.inf for c^n. One that is malformed is read as far as it goes.

    Raises:
      RecursionError: if brackets are nested over MAX_DEPTH deep.
    """
    return _Reader(pattern).alternatives(0).closed


def _patterns(step) -> Iterator[str]:
    """All {"Regex": ...} below a step."""
    if isinstance(step, Mapping):
        for name, value in step.items():
            if name == "Regex" and isinstance(value, str):
                yield value
            else:
                yield from _patterns(value)
    elif isinstance(step, list):
        for value in step:
            yield from _patterns(value)


class _Reader:
    """Reads an expression once, from left to right."""

    def __init__(self, pattern: str):
        self.pattern, self.place = pattern, 0

    def alternatives(self, depth: int) -> Part:
        """Up to the closing bracket of a group, or to the end."""
        if depth > MAX_DEPTH:
            raise RecursionError
        branches, items = [], []
        while self.place < len(self.pattern) and self.pattern[self.place] != ")":
            if self.pattern[self.place] == "|":
                self.place += 1
                branches.append(_in_a_row(items))
                items = []
            else:
                items.append(self._repeated(self._atom(depth)))
        branches.append(_in_a_row(items))
        self.place += 1
        return Part(
            any(branch.empty for branch in branches),
            len(branches) > 1 or branches[0].varies,
            max(branch.degree for branch in branches),
            max(branch.closed for branch in branches),
        )

    def _atom(self, depth: int) -> Part:
        rest, letter = self.pattern, self.pattern[self.place]
        if letter == "(":
            opened = _OPENS.match(rest, self.place)
            self.place, text = opened.end(), opened[0]
            if text.startswith("(?#") or (text.startswith("(?") and text.endswith(")")):
                return NOTHING  # a comment, or switches
            inner = self.alternatives(depth + 1)
            if text in ("(?=", "(?!", "(?<=", "(?<!"):
                return Part(False, False, inner.closed, inner.closed)
            if text == "(?>":
                return Part(inner.empty, False, inner.closed, inner.closed)
            return inner
        if letter == "[":
            self._class()
            return CHARACTER
        if letter == "\\":
            found = _ESCAPE.match(rest, self.place)
            self.place = found.end() if found else len(rest)
            if found and found[0] == r"\g":  # a group called again, perhaps from inside of itself
                return Part(False, True, math.inf, math.inf)
            return CHARACTER
        self.place += 1
        return CHARACTER

    def _class(self) -> None:
        """[...], with others inside, as Oniguruma reads them."""
        depth = 0
        while self.place < len(self.pattern):
            letter = self.pattern[self.place]
            if letter == "\\":
                found = _ESCAPE.match(self.pattern, self.place)
                self.place = found.end() if found else len(self.pattern)
                continue
            self.place += 1
            if letter == "[":
                depth += 1
                self.place += self.pattern.startswith("^", self.place)
                self.place += self.pattern.startswith("]", self.place)  # the first one is itself
            elif letter == "]":
                depth -= 1
                if not depth:
                    return

    def _repeated(self, part: Part) -> Part:
        """The part with the quantifiers after it."""
        while self.place < len(self.pattern):
            letter, bounds = self.pattern[self.place], None
            if letter in "*+?":
                self.place += 1
                bounds = {"*": (0, math.inf), "+": (1, math.inf), "?": (0, 1)}[letter]
            elif found := _COUNTS.match(self.pattern, self.place):
                low, comma, high = found.groups()
                if low or high:
                    self.place = found.end()
                    least = int(low or 0)
                    bounds = least, (int(high) if high else math.inf) if comma else least
            if bounds is None:
                return part
            mode = self.pattern[self.place : self.place + 1]
            if mode == "?" or (mode == "+" and letter in "*+?"):
                self.place += 1
            part = _times(part, *bounds, possessive=mode == "+" and letter in "*+?")
        return part


def _in_a_row(items: list[Part]) -> Part:
    """Parts one after the other."""
    degree, closed, refused = 0.0, 0.0, False
    for item in reversed(items):
        degree += item.degree
        closed += item.degree if refused else item.closed
        refused = refused or not item.empty
    return Part(all(item.empty for item in items), any(item.varies for item in items), degree, closed)


def _times(part: Part, least: float, most: float, *, possessive: bool) -> Part:
    """A part so many times."""
    empty = part.empty or least == 0
    if possessive:
        return Part(empty, False, part.closed, part.closed)
    if most >= MANY:
        return Part(empty, True, math.inf if part.varies else 1 + part.degree, part.closed)
    if part.varies and most > FEW:
        return Part(empty, True, math.inf, part.closed)
    return Part(empty, part.varies or least != most, part.degree * max(most, 1), part.closed * max(most, 1))
