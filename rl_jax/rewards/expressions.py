"""Reads a mathematical answer, LaTeX or plain, into exact values: numbers, lists, tuples, intervals, sets, equations.

A recursive-descent parser over a whitelist of tokens; nothing is evaluated as code, and what it does not know is
refused with a message. Length, depth and sizes are bounded: every text is read or refused in a fraction of a second.
"""

import re
from typing import NamedTuple

from rl_jax.rewards.algebra import AlgebraError, Value
from rl_jax.rewards.value_reader import MAX_DEPTH, ExpressionError, Reader

MAX_LENGTH = 1000  # characters
MAX_TOKENS = 400

RELATIONS = {"=": "=", "<": "<", ">": ">", r"\le": "<=", r"\ge": ">=", r"\ne": "!="}
_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?|\.\d+)|(\\[A-Za-z]+|\\[{}|])|([A-Za-z])|([-+*/^_!()\[\]{},=<>|]))", re.ASCII)
_MATRIX = re.compile(r"\s*\\begin\{([pbvB]?matrix)\}(.*)\\end\{\1\}\s*", re.DOTALL)
_NUMBER = r"(?:\d+(?:\.\d+)?|\.\d+)"
_LITERAL = re.compile(
    rf"[-+]?(?:{_NUMBER}(?:/\d+)?|\(?-?\d+/\d+\)?|\d*\\frac(?:\d|\{{-?\d+\}}) ?(?:\d|\{{-?\d+\}})|\d+ \d+/\d+"
    rf"|{_NUMBER}\*10\^(?:\d+|\{{-?\d+\}}))",
    re.ASCII,
)


class Number(NamedTuple):
    """A value. literal: written as a number (3, -0.5, 1/2, 2 1/2, 3*10^8), not as something to work out."""

    value: Value
    literal: bool


class Several(NamedTuple):
    """kind: "list" (a, b), "set", "union", "tuple" (with its brackets, "()" to "[]"), "row" or "matrix"."""

    kind: str
    items: tuple


class Relation(NamedTuple):
    """a = b, a < x <= b: sides and the signs between them; "name = ..." has the name."""

    signs: tuple[str, ...]
    sides: tuple[Number, ...]
    name: str


Answer = Number | Several | Relation


def parse(text: str) -> Answer:
    """Reads one answer, already normalised (rl_jax.rewards.normal_form).

    Raises:
      ExpressionError: if it is not exactly one answer.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"over {MAX_LENGTH} characters")
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        rows = [row for row in matrix[2].split(r"\\") if row.strip()]
        return Several("matrix", tuple(Several("row", tuple(map(parse, row.split("&")))) for row in rows))
    try:
        tokens = _tokens(text)
        if len(tokens) > MAX_TOKENS:
            raise ExpressionError(f"over {MAX_TOKENS} symbols")
        _check_brackets(tokens)
        if any(token in (r"\pm", r"\mp") for token in tokens):
            return _both_signs(tokens)
        return _answer(tokens, 0)
    except AlgebraError as error:
        raise ExpressionError(str(error)) from error


def _tokens(text: str) -> list[str]:
    tokens, place, text = [], 0, text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ExpressionError(f"unexpected {text[place : place + 10]!r} at place {place}")
        token = match.group().strip()
        if tokens and tokens[-1] == r"\frac" or len(tokens) > 1 and tokens[-2] == r"\frac" and tokens[-1].isdigit():
            if token[0].isdigit():  # \frac12 is one half
                tokens.append(token[0])
                place = match.end() - len(token) + 1
                continue
        tokens.append(token)
        place = match.end()
    return tokens


def _check_brackets(tokens: list[str]) -> None:
    closers = {"(": ")]", "[": ")]", "{": "}", r"\{": (r"\}",)}
    stack = []
    for token in tokens:
        if token in closers:
            stack.append(token)
            if len(stack) > MAX_DEPTH:
                raise ExpressionError(f"brackets nested over {MAX_DEPTH} deep")
        elif token in (")", "]", "}", r"\}") and (not stack or token not in closers[stack.pop()]):
            raise ExpressionError(f"an unexpected {token!r}")
    if stack:
        raise ExpressionError("a bracket is not closed")


def _both_signs(tokens: list[str]) -> Answer:
    """a \\pm b as the list of its two values."""
    signs = ({r"\pm": "+", r"\mp": "-"}, {r"\pm": "-", r"\mp": "+"})
    items = [_answer([sign.get(token, token) for token in tokens], 0) for sign in signs]
    if not all(isinstance(item, Number | Relation) for item in items):
        raise ExpressionError(r"\pm within a list")
    return Several("list", tuple(items))


def _split(tokens: list[str], separators) -> tuple[list[list[str]], list[str]]:
    """(parts, separators found) at depth 0."""
    parts, found, depth = [[]], [], 0
    for token in tokens:
        depth += (token in ("(", "[", "{", r"\{")) - (token in (")", "]", "}", r"\}"))
        if depth == 0 and token in separators:
            parts.append([])
            found.append(token)
        else:
            parts[-1].append(token)
    return parts, found


def _answer(tokens: list[str], depth: int) -> Answer:
    parts, found = _split(tokens, ",")
    if found:
        return Several("list", tuple(_item(part, depth) for part in parts))
    return _item(tokens, depth)


def _item(tokens: list[str], depth: int) -> Answer:
    if not tokens:
        raise ExpressionError("an empty answer")
    if depth > MAX_DEPTH:
        raise ExpressionError("nested too deep")
    unions, found = _split(tokens, (r"\cup",))
    if found:
        return Several("union", tuple(_item(part, depth + 1) for part in unions))
    if tokens[:2] == [r"\emptyset"] or tokens == [r"\{", r"\}"]:
        return Several("set", ())
    inside, rest = tokens[1:-1], _split(tokens[1:-1], ",")
    if tokens[0] == r"\{" and _closes(tokens):
        return Several("set", tuple(_item(part, depth + 1) for part in rest[0]))
    if tokens[0] in "([" and _closes(tokens) and rest[1] and inside:
        return Several(tokens[0] + tokens[-1], tuple(_item(part, depth + 1) for part in rest[0]))
    sides, signs = _split(tokens, RELATIONS)
    if signs:
        name = "".join(sides[0]) if len(signs) == 1 and signs == ["="] and _is_name(sides[0]) else ""
        return Relation(tuple(RELATIONS[sign] for sign in signs), tuple(_number(side) for side in sides), name)
    return _number(tokens)


def _closes(tokens: list[str]) -> bool:
    """Whether the first bracket is closed by the last token."""
    depth = 0
    for place, token in enumerate(tokens):
        depth += (token in ("(", "[", "{", r"\{")) - (token in (")", "]", "}", r"\}"))
        if depth == 0:
            return place == len(tokens) - 1
    return False


def _is_name(tokens: list[str]) -> bool:
    """x, x_1, f(x), \\theta: what an answer may call its value."""
    return re.fullmatch(r"([A-Za-z]|\\[a-z]+)(_(\w|\{\w+\}))?(\([A-Za-z]\))?", "".join(tokens), re.ASCII) is not None


def _number(tokens: list[str]) -> Number:
    if not tokens:
        raise ExpressionError("nothing on one side of a sign")
    reader = Reader(tokens)
    value = reader.sum()
    if reader.place != len(tokens):
        raise ExpressionError(f"unexpected {tokens[reader.place]!r}")
    spaced = re.sub(r"(?<=\d) (?=\d)", "_", " ".join(tokens)).replace(" ", "").replace("_", " ")
    return Number(value, _LITERAL.fullmatch(spaced) is not None)
