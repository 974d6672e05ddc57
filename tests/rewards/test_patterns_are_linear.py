"""No pattern that reads a completion takes more than linear time: seen in its syntax tree, not on a clock.

A pattern is slow where a text can be split between two repetitions in many ways: one repetition within another, or two
that stand beside each other (with nothing that must be there between them) and share a character.
"""

import ast
import importlib
import pkgutil
import re
import re._constants as codes
import re._parser as syntax

import pytest

import rl_jax.rewards
from rl_jax.rewards import exact

SAMPLE = [chr(code) for code in range(256)] + ["−", "日", "\u2028"]
REPEATS = {codes.MAX_REPEAT, codes.MIN_REPEAT}
MANY = 64  # a repetition of at most so many is bounded
# Slow ones that read a text of bounded length only: module, name, and what bounds it.
BOUNDED = {
    ("expressions", "_MATRIX"): "MAX_LENGTH",
    ("math_backend", "_ONE_NUMBER"): "mathematics.MAX_LENGTH",
    ("normal_form", "_UNITS"): "mathematics.MAX_LENGTH or extraction",
    ("normal_form", "_PERCENT"): "single blanks: normalise joins them",
    ("normal_form", "_DEGREES"): "single blanks",
    ("normal_form", r"\s*,?\s*\b(?:and|or)\b\s*"): "single blanks",
    ("extract", "_HASH"): "cannot fail: nothing follows",
    ("order", "_INTEGERS"): "10 characters a number",
    ("exact", "_LEADING_CHOICE"): "anchored at the start",
    ("sql", "_TOKEN"): "MAX_QUERY",
    ("game24", "_TIMES"): "MAX_WRITTEN",
    ("confidence", "FORMAT"): "read by hand",
}


def characters(items) -> set[str] | None:
    """What a single item can match, of the sample; None if it is no single character."""
    if len(items) != 1 or items[0][0] not in (codes.LITERAL, codes.NOT_LITERAL, codes.IN, codes.ANY, codes.CATEGORY):
        return None
    code, argument = items[0]
    if code is codes.ANY:
        return set(SAMPLE)
    if code is codes.LITERAL:
        return {chr(argument)}
    if code is codes.NOT_LITERAL:
        return set(SAMPLE) - {chr(argument)}
    found, negated = set(), False
    for kind, value in argument if code is codes.IN else [(code, argument)]:
        if kind is codes.NEGATE:
            negated = True
        elif kind is codes.LITERAL:
            found.add(chr(value))
        elif kind is codes.RANGE:
            found |= {c for c in SAMPLE if value[0] <= ord(c) <= value[1]}
        else:
            name = str(value).rsplit("_", 1)[-1].lower()[0]
            escape = name.upper() if "NOT" in str(value) else name
            found |= {c for c in SAMPLE if re.fullmatch("\\" + escape, c)}
    return set(SAMPLE) - found if negated else found


def flat(items) -> list:
    """A sequence of the syntax tree, with what stands in groups in it."""
    return [part for item in items for part in (flat(item[1][-1]) if item[0] is codes.SUBPATTERN else [item])]


def slow(items) -> str:
    """Why a sequence of the syntax tree is slow; "" if it is not."""
    open_before: list[set[str]] = []  # repetitions that end here, or could
    for code, argument in flat(items):
        if code in REPEATS:
            least, most, inner = argument
            own = characters(flat(inner))
            if own is None:
                if reason := slow(inner) or (most > MANY and nested(flat(inner))):
                    return reason
            if most > MANY and own is not None:
                if any(own & before for before in open_before):
                    return f"two repetitions beside each other share {sorted(own & open_before[-1])[:3]}"
                open_before.append(own)
            elif least > 0:
                open_before = []
        elif code is codes.BRANCH:
            for branch in argument[1]:
                if reason := slow(branch):
                    return reason
            open_before = [part for branch in argument[1] for part in trailing(flat(branch))]
        elif code not in (codes.AT, codes.ASSERT, codes.ASSERT_NOT, codes.POSSESSIVE_REPEAT, codes.ATOMIC_GROUP):
            open_before = []
    return ""


def trailing(items) -> list[set[str]]:
    """The repetitions that a sequence can end with."""
    if not items or items[-1][0] not in REPEATS:
        return []
    own = characters(flat(items[-1][1][2]))
    return [own] if own is not None and items[-1][1][1] > MANY else []


def nested(items) -> str:
    """Why a repeated sequence is slow: a repetition in it shares a character with what must follow it."""
    for place, (code, argument) in enumerate(items):
        if code not in REPEATS or argument[1] <= MANY:
            continue
        own = characters(flat(argument[2]))
        following = next((item for item in items[place + 1 :] + items if item[0] not in REPEATS or item[1][0]), None)
        after = None if following is None else following
        if after is not None and after[0] in REPEATS:
            after = characters(flat(after[1][2]))
        elif after is not None:
            after = characters([after])
        if own is None or after is None or own & after:
            return "a repetition within a repetition"
    return ""


def patterns():
    for info in pkgutil.iter_modules(rl_jax.rewards.__path__):
        module = importlib.import_module(f"rl_jax.rewards.{info.name}")
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern):
                yield info.name, name, value.pattern, value.flags
        with open(module.__file__, encoding="utf-8") as file:
            tree = ast.parse(file.read())
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            ours = getattr(node.func.value, "id", "") == "re" and node.func.attr != "compile"
            if ours and isinstance(node.args[0], ast.Constant):
                yield info.name, node.args[0].value, node.args[0].value, 0


def test_patterns_of_the_rewards_are_linear():
    found = {(module, name): slow(syntax.parse(text, flags & ~re.UNICODE)) for module, name, text, flags in patterns()}
    assert len(found) > 30
    bad = {place: reason for place, reason in found.items() if reason and place not in BOUNDED}
    assert not bad


@pytest.mark.parametrize("text", [r"(a+)+$", r"\s*\s*x", r"a\s*:?\s*[\s*]*\(", r"(?:\w+\s?)*!", r"(\d+)*"])
def test_slow_patterns_are_seen(text):
    assert slow(syntax.parse(text))


@pytest.mark.parametrize("text", [r"\s*+\s*+x", r"[a-z]+(?:-[a-z]+)*", r"\d+\.\d+", r"x*:y*", r"(?:a|b)c+", r"\s*:\s*"])
def test_linear_patterns_are_not(text):
    assert not slow(syntax.parse(text))


def test_a_choice_after_many_blanks_is_still_read():
    assert exact.chosen_letters("The answer is" + " " * 50_000 + "B", {}) == {"B"}
    assert exact.chosen_letters("answer" + " " * 100_000 + "?", {}) == set()
    assert exact.chosen_letters("answers : (C)", {}) == {"C"}
    assert exact.chosen_letters(r"\boxed{ \text{ D }}", {}) == {"D"}
