"""Verifier of mathematical answers: extraction, normalisation, exact comparison, then Math-Verify if it is asked for.

Every stage is exact about what it accepts. Answers are compared as values over the rationals with radicals, i, pi and
variables (rl_jax.rewards.algebra), so no decimal is taken for a fraction that it only comes near; where the right
answer is a plain number the given one must be one too ("3+3" is not 6). A completion with several answers is right only
if each of them is. Lists and sets are compared in any order, tuples, intervals and matrices place by place.
"""

from rl_jax.rewards import extract as extraction
from rl_jax.rewards import math_backend, normal_form
from rl_jax.rewards.algebra import Algebra, AlgebraError, as_fraction, number
from rl_jax.rewards.expressions import MAX_LENGTH, Answer, ExpressionError, Number, Relation, Several, parse

MAX_ITEMS = 50  # of a list
BACKENDS = ("exact", "math_verify")


def score(
    prompt: str,
    completion: str,
    info: dict,
    *,
    extract: str | list[str] = "boxed",
    backend: str = "exact",
    answer_field: str = "answer",
) -> dict[str, float]:
    """Scores the final answer of a completion.

    Args:
      prompt: unused.
      completion: the text.
      info: has the right answer.
      extract: how the answer is found: a rule of rl_jax.rewards.extract or several, tried in order.
      backend: "exact", or "math_verify" to ask that library where the exact comparison says no; what it accepts is
        confirmed at 60 digits.
      answer_field: the field of info.

    Returns:
      reward = correct: 1.0 if the completion gives the right answer and no other. answered: 1.0 if an answer was found.

    Raises:
      ValueError: if info has no right answer, or it has no balanced braces; or an argument is unknown.
    """
    gold = right_answer(info, answer_field)
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} is none of {', '.join(BACKENDS)}")
    found = extraction.answers(completion, extract)
    correct = float(bool(found) and all(equivalent(gold, given, backend=backend) for given in found))
    return {"reward": correct, "correct": correct, "answered": float(any(found))}


def right_answer(info: dict, field: str) -> str:
    """info[field] as a text.

    Raises:
      ValueError: if it is missing, empty or not readable; the message names the field.
    """
    gold = info.get(field)
    if isinstance(gold, bool) or not isinstance(gold, str | int | float):
        raise ValueError(f"info[{field!r}] must be the right answer, a text or a number; found {gold!r:.80}. "
                         "Name another field with answer_field=")  # fmt: skip
    gold = str(gold).strip()
    bare = gold.replace("\\{", "").replace("\\}", "")
    if not gold or gold in ("nan", "inf", "-inf") or bare.count("{") != bare.count("}"):
        raise ValueError(f"info[{field!r}] is {gold!r:.80}: no answer can be compared with it")
    return gold


def equivalent(gold: str, given: str, *, backend: str = "exact") -> bool:
    """Whether two answers are the same; the right one decides what is compared.

    Args:
      gold: the right answer.
      given: the answer to judge.
      backend: see score.
    """
    if not given.strip() or max(len(gold), len(given)) > MAX_LENGTH or "\\approx" in given and gold != given:
        return False
    right, other = normal_form.normalise(gold), normal_form.normalise(given)
    if not normal_form.same_units(right, other):
        return False
    if _same_values(right, other) or _same_text(gold, given):
        return True
    return backend == "math_verify" and _is_open(right, other) and math_backend.confirmed(right.text, other.text)


def _is_open(right: normal_form.Normal, other: normal_form.Normal) -> bool:
    """Whether the exact comparison leaves room for another.

    Not where the right answer is a plain number, nor for lists, intervals and equations, whose form it has judged.
    """
    readings = []
    for text in (right.text, other.text):
        try:
            readings.append(parse(text))
        except ExpressionError:
            readings.append(None)
    gold, given = readings
    if isinstance(gold, Number) and gold.literal:
        return False
    return all(reading is None or isinstance(reading, Number) for reading in (gold, given))


def _same_text(gold: str, given: str) -> bool:
    """The same string after normalisation; words in any case, a letter with or without parentheses."""
    if not (gold.isascii() and given.isascii()) and gold.strip() != given.strip():
        return False
    for form in (normal_form.compact, normal_form.spelled):
        if form(gold) == form(given) != "":
            return True
    words = normal_form.plain(gold)
    is_words = words.replace(" ", "").replace("-", "").isalpha() and (len(words) > 1 or "\\text" in gold or "(" in gold)
    return (is_words or gold.strip().isalpha() and gold.isupper()) and words == normal_form.plain(given)


def _same_values(right: normal_form.Normal, other: normal_form.Normal) -> bool:
    """Whether both can be read, and are equal with commas as separators or as thousands."""
    is_whole = normal_form.is_thousands(right.text)  # 1,234 is no list of 1 and 234
    for reading in (normal_form.thousands,) if is_whole else (normal_form.thousands, str):
        try:
            gold, given = parse(reading(right.text)), parse(reading(other.text))
        except ExpressionError:
            continue
        try:
            if same(gold, given) or _same_percent(gold, right.percent, given, other.percent):
                return True
        except AlgebraError:
            continue
    return False


def _same_percent(gold: Answer, gold_percent: bool, given: Answer, given_percent: bool) -> bool:
    """50 % is .5, whichever of the two has the sign."""
    if gold_percent == given_percent or not isinstance(gold, Number) or not isinstance(given, Number):
        return False
    first, second = as_fraction(gold.value), as_fraction(given.value)
    if first is None or second is None or not given.literal:
        return False
    return first / 100 == second if gold_percent else first == second / 100


def same(gold: Answer, given: Answer) -> bool:
    """Whether two parsed answers are equal.

    Raises:
      AlgebraError: if the comparison takes too long.
    """
    if isinstance(gold, Relation) and isinstance(given, Relation):
        return _same_relation(gold, given)
    if isinstance(gold, Relation) or isinstance(given, Relation):  # x = 3 is 3, and 2x = 6 is not
        named, bare = (gold, given) if isinstance(gold, Relation) else (given, gold)
        if not named.name:
            return False
        return same(named.sides[1], bare) if named is gold else same(bare, named.sides[1])
    if isinstance(gold, Number) and isinstance(given, Number):
        return (given.literal or not gold.literal) and Algebra().equal(gold.value, given.value)
    if isinstance(gold, Several) and isinstance(given, Several):
        kinds = {gold.kind, given.kind}
        if len(gold.items) != len(given.items) or len(gold.items) > MAX_ITEMS:
            return False
        if kinds <= {"list", "set"} or kinds == {"union"}:
            return _same_in_any_order(gold.items, given.items)
        return len(kinds) == 1 and all(map(same, gold.items, given.items))
    return False


def _same_in_any_order(gold: tuple, given: tuple) -> bool:
    left = list(given)
    for item in gold:
        match = next((place for place, other in enumerate(left) if same(item, other)), None)
        if match is None:
            return False
        del left[match]
    return True


def _same_relation(gold: Relation, given: Relation) -> bool:
    if gold.signs == given.signs == ("=",):
        if gold.name and given.name:
            return gold.name == given.name and same(gold.sides[1], given.sides[1])
        return Algebra().proportional(_difference(gold), _difference(given))
    flipped = {">": "<", ">=": "<="}
    forms = []
    for relation in (gold, given):
        signs, sides = relation.signs, relation.sides
        if set(signs) <= set(flipped):
            signs, sides = tuple(flipped[sign] for sign in signs[::-1]), sides[::-1]
        forms.append((signs, sides))
    (first, left), (second, right) = forms
    return first == second and all(Algebra().equal(a.value, b.value) for a, b in zip(left, right, strict=True))


def _difference(relation: Relation):
    algebra = Algebra()
    left, right = (side.value for side in relation.sides)
    return algebra.add(left, algebra.multiply(number(-1), right))
