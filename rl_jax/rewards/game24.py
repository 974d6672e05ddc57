"""Verifier of the game of 24: an expression over four given numbers with + - * / and parentheses that is exactly 24.

A solution may also be written in steps, each with the numbers left after it: "4*6=24:1 1 24,24*1=24:1 24,24*1=24". The
text is parsed by recursive descent with exact fractions and never evaluated as code. Length, depth and size of numbers
are bounded, so every text is refused or scored within microseconds.
"""
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

MAX_LENGTH = 100  # characters
MAX_WRITTEN = 400  # with blanks and what stands around the answer
MAX_DEPTH = 12    # nested parentheses
TARGET = 24

_STEP = re.compile(r"([0-9]{1,4})([-+*/])([0-9]{1,4})=([0-9]{1,4})(?::([0-9]{1,4}(?: [0-9]{1,4})*))?")
_TOKEN = re.compile(r"\s*([0-9]{1,4}(?![0-9])|[-+*/()])")
_SIGNS = str.maketrans("×·∙∗⋅÷∕⁄−–", "*****///--")  # as people and models write them -> ours
_LATEX = ((r"\times", "*"), (r"\cdot", "*"), (r"\div", "/"), (r"\left", ""), (r"\right", ""))
_LABEL = re.compile(r"(?:the )?(?:final )?(?:answer|solution|expression)(?: is)?:? ?", re.IGNORECASE)
_BOX = re.compile(r"\\boxed ?\{([^{}]*)\}")
_AROUND = re.compile(r" ?([-+*/=:,()]) ?")
_TIMES = re.compile(r"[-+*/=:,()0-9 ]*[xX][-+*/=:,()0-9 xX]*")


class ExpressionError(ValueError):
    """The text is not an expression, or it divides by zero; the message says at which place."""


class Expression(NamedTuple):
    """The exact value, and the integers in the order in which they appear."""
    value: Fraction
    numbers: tuple[int, ...]


def parse(text: str) -> Expression:
    """Parses and evaluates an expression.

        sum := product (("+"|"-") product)*    product := atom (("*"|"/") atom)*    atom := integer | "(" sum ")"

    A sign before a number or a parenthesis is refused: the game has only the four operations.

    Raises:
      ExpressionError: if the text is not exactly one expression.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"over {MAX_LENGTH} characters")
    tokens, place, text = [], 0, text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ExpressionError(f"unexpected {text[place:place + 10]!r} at place {place}")
        tokens.append(match[1])
        place = match.end()
    numbers: list[int] = []
    value, rest = _sum(tokens, 0, 0, numbers)
    if rest != len(tokens):
        raise ExpressionError(f"unexpected {tokens[rest]!r} after the expression")
    return Expression(value, tuple(numbers))


def _sum(tokens: list[str], place: int, depth: int, numbers: list[int]) -> tuple[Fraction, int]:
    total, place = _product(tokens, place, depth, numbers)
    while place < len(tokens) and tokens[place] in "+-":
        term, after = _product(tokens, place + 1, depth, numbers)
        total = total + term if tokens[place] == "+" else total - term
        place = after
    return total, place


def _product(tokens: list[str], place: int, depth: int, numbers: list[int]) -> tuple[Fraction, int]:
    total, place = _atom(tokens, place, depth, numbers)
    while place < len(tokens) and tokens[place] in "*/":
        factor, after = _atom(tokens, place + 1, depth, numbers)
        if tokens[place] == "/" and factor == 0:
            raise ExpressionError("division by zero")
        total = total * factor if tokens[place] == "*" else total / factor
        place = after
    return total, place


def _atom(tokens: list[str], place: int, depth: int, numbers: list[int]) -> tuple[Fraction, int]:
    if place == len(tokens):
        raise ExpressionError("expected a number or '(', but the expression ends")
    token = tokens[place]
    if token.isdigit():
        numbers.append(int(token))
        return Fraction(int(token)), place + 1
    if token != "(":
        raise ExpressionError(f"expected a number or '(', found {token!r}")
    if depth == MAX_DEPTH:
        raise ExpressionError(f"parentheses nested over {MAX_DEPTH} deep")
    value, place = _sum(tokens, place + 1, depth + 1, numbers)
    if place == len(tokens) or tokens[place] != ")":
        raise ExpressionError("a parenthesis is not closed")
    return value, place + 1


class CheckedSteps(NamedTuple):
    """A solution in steps.

    Attributes:
      valid: whether every line is well formed and its arithmetic is right.
      uses: whether every operand was available and the listed remaining numbers are right, down to a single number.
      value: of the last line; None if there is none.
    """
    valid: bool
    uses: bool
    value: int | None


def parse_steps(text: str, numbers: Sequence[int]) -> CheckedSteps:
    """Follows "a*b=c:LEFT,...,x+y=z", starting with `numbers`; LEFT lists the remaining numbers in order, except last.

    Only whole numbers from 0 to 9999, so a solution through a fraction or a negative number cannot be written this way.
    """
    if len(text) > MAX_LENGTH:
        return CheckedSteps(False, False, None)
    operands, lines = sorted(numbers), text.split(",")
    valid, uses, value = True, len(lines) == len(numbers) - 1, None
    for index, line in enumerate(lines):
        match = _STEP.fullmatch(line)
        if match is None:
            return CheckedSteps(False, False, None)
        left, right, value = int(match[1]), int(match[3]), int(match[4])
        exact = {"+": left + right, "-": left - right, "*": left * right}
        result = exact[match[2]] if match[2] in exact else Fraction(left, right) if right else None
        valid = valid and value == result
        for number in (left, right):
            uses = uses and number in operands
            if uses:
                operands.remove(number)
        operands = sorted([*operands, value])
        shown = [int(number) for number in (match[5] or "").split()]
        uses = uses and shown == (operands if index < len(lines) - 1 else [])
    return CheckedSteps(valid, uses, value)


def is_solution(text: str, numbers: Sequence[int]) -> bool:
    """Whether `text` is an expression that uses exactly `numbers`, once each, and is exactly 24."""
    try:
        expression = parse(text)
    except ExpressionError:
        return False
    return expression.value == TARGET and sorted(expression.numbers) == sorted(numbers)


def tidy(text: str) -> str:
    """An answer without what does not change it: a label, a box, dollar signs, blanks at signs, other signs for ours.

    Nothing that could hide a second answer is dropped: any other text stays, and is no expression.

    Args:
      text: over MAX_WRITTEN characters it is returned as it is.
    """
    if len(text) > MAX_WRITTEN:
        return text
    text = " ".join(text.split()).translate(_SIGNS)
    label = _LABEL.match(text)
    text = text[label.end() :] if label else text
    for latex, sign in _LATEX:
        text = text.replace(latex, sign)
    text = text.removesuffix(".").rstrip()
    text = text[1:-1].strip() if len(text) > 1 and text[0] == text[-1] == "$" else text
    boxed = _BOX.fullmatch(text)
    text = " ".join((boxed[1] if boxed else text).split())
    text = re.sub("[xX]", "*", text) if _TIMES.fullmatch(text) else text
    return _AROUND.sub(r"\1", text)


def score(prompt: str, completion: str, info: dict) -> dict[str, float]:
    """Scores one completion: an expression, with or without "= 24" behind it, or steps; written as `tidy` reads it.

    Returns:
      reward = correct: 1.0 if the completion is a solution for info["numbers"]. valid_expression: 1.0 if it is an
      expression with a value (or steps that are each right). uses_numbers: 1.0 if it also uses the four numbers once
      each.
    """
    text = tidy(completion)
    whole, _, value = text.partition("=")
    if value == str(TARGET) and _STEP.fullmatch(text) is None:
        text = whole  # an expression and its value
    if "=" in text:
        steps = parse_steps(text, info["numbers"])
        correct = float(steps.valid and steps.uses and steps.value == TARGET)
        uses = float(steps.valid and steps.uses)
        return {"reward": correct, "correct": correct, "valid_expression": float(steps.valid), "uses_numbers": uses}
    try:
        expression = parse(text)
    except ExpressionError:
        return {"reward": 0.0, "correct": 0.0, "valid_expression": 0.0, "uses_numbers": 0.0}
    uses = sorted(expression.numbers) == sorted(info["numbers"])
    correct = float(uses and expression.value == TARGET)
    return {"reward": correct, "correct": correct, "valid_expression": 1.0, "uses_numbers": float(uses)}
