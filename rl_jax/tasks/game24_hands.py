"""Every hand of the game of 24, made here: four cards of 1 to 13 that make 24, with their solutions.

1362 of the 1820 hands have a solution (the published files hold the same 1362). What rl_jax.tasks.game24 takes where no
folder of puzzles is given. Solutions are exact: integers, and fractions where a division leaves a rest. A difference is
taken the way that is not negative, which loses no hand: signs can be moved outwards, and 24 is positive.
"""

import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction

CARDS = range(1, 14)
TARGET = 24
NUM_TEST = 362  # held-out hands, as many as in the published split

Step = tuple[str, str]  # ("4*6=24", what is left after it, "1 1 24")
Number = int | Fraction


def solve(numbers: Sequence[Number]) -> Iterator[tuple[tuple[Step, ...], str]]:
    """(steps, expression) of every way to make 24 that there is; equal ones may come twice."""
    yield from _solve([(number, str(number)) for number in sorted(numbers)], ())


def _solve(held: list[tuple[Number, str]], steps: tuple[Step, ...]) -> Iterator[tuple[tuple[Step, ...], str]]:
    if len(held) == 1:
        yield steps, _bare(held[0][1])
        return
    for i, j in itertools.combinations(range(len(held)), 2):
        rest = [held[k] for k in range(len(held)) if k not in (i, j)]
        for turned, sign, value in _results(held[i][0], held[j][0]):
            if not can_make(tuple(sorted([*(number for number, _ in rest), value]))):
                continue
            (a, left), (b, right) = (held[j], held[i]) if turned else (held[i], held[j])
            kept = sorted([*rest, (value, f"({left}{sign}{right})")], key=lambda pair: pair[0])
            step = (f"{a}{sign}{b}={value}", " ".join(str(number) for number, _ in kept))
            yield from _solve(kept, (*steps, step))


@functools.cache
def can_make(numbers: tuple[Number, ...]) -> bool:
    """Whether numbers, in rising order, make 24."""
    if len(numbers) == 1:
        return numbers[0] == TARGET
    for i, j in itertools.combinations(range(len(numbers)), 2):
        rest = [numbers[k] for k in range(len(numbers)) if k not in (i, j)]
        if any(can_make(tuple(sorted([*rest, value]))) for _, _, value in _results(numbers[i], numbers[j])):
            return True
    return False


def _results(small: Number, large: Number) -> Iterator[tuple[bool, str, Number]]:
    """(whether the larger one stands first, sign, value) of all operations on 0 <= small <= large."""
    yield False, "+", small + large
    yield False, "*", small * large
    yield True, "-", large - small
    if small:
        yield True, "/", _quotient(large, small)
    if large != small:
        yield False, "/", _quotient(small, large)


def _quotient(a: Number, b: Number) -> Number:
    if type(a) is type(b) is int and a % b == 0:
        return a // b
    value = Fraction(a) / b
    return int(value) if value.denominator == 1 else value


def _bare(expression: str) -> str:
    """Without the parentheses around all of it."""
    return expression[1:-1] if expression.startswith("(") else expression


def puzzles(*, max_solutions: int, worked: bool) -> list[dict]:
    """[{"numbers", "solutions"}] of every hand that can be solved, in the order of the cards.

    worked: solutions in steps, of whole numbers alone: a few hands then have none. Else expressions.
    The first max_solutions by the hash of (numbers, text), a fixed random sample, as of the published files.
    """
    result = []
    for hand in itertools.combinations_with_replacement(CARDS, 4):
        texts: dict[str, None] = {}
        solved = False
        for steps, expression in solve(hand):
            solved = True
            if not worked:
                texts.setdefault(expression)
            elif not any("/" in step.partition("=")[2] or "/" in left for step, left in steps):
                texts.setdefault(",".join(f"{step}:{left}" for step, left in steps).rpartition(":")[0])
        if solved:
            numbers = list(hand)
            order = sorted(texts, key=lambda text: hashlib.sha256(f"{numbers} {text}".encode()).digest())  # noqa: B023
            result.append({"numbers": numbers, "solutions": order[:max_solutions]})
    return result


def split(hands: Sequence[dict]) -> dict[str, list[dict]]:
    """{"train", "test"}: NUM_TEST hands by the smallest hash of their numbers are the test hands, whatever else is."""
    held_out = sorted(hands, key=lambda hand: hashlib.sha256(str(hand["numbers"]).encode()).digest())[:NUM_TEST]
    names = {tuple(hand["numbers"]) for hand in held_out}
    return {
        name: [hand for hand in hands if (tuple(hand["numbers"]) in names) == (name == "test")]
        for name in ("train", "test")
    }
