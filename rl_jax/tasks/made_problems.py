"""Word problems and exercises, made here: what rl_jax.tasks.word_problems takes where no folder is given.

    "Tom has 3 pens. He buys 4 more. Then he gives away 2. How many pens has he now?\\n" -> "3+4=7\\n7-2=5\\n#### 5"
    "Compute \\frac{1}{2} + \\frac{1}{3}.\\n" -> "\\boxed{\\frac{5}{6}}"

The first are in the form of GSM8K, the second in that of MATH.
"""

import random
from collections.abc import Callable, Iterator
from fractions import Fraction

NAMES = (("Tom", "He"), ("Ben", "He"), ("Mia", "She"), ("Ann", "She"), ("Sam", "He"), ("Eve", "She"))
THINGS = ("pens", "cards", "eggs", "nuts", "coins", "books")
STEPS = (
    ("+", "{who} buys {n} more."),
    ("+", "{who} finds {n} more."),
    ("-", "{who} gives away {n}."),
    ("-", "{who} loses {n}."),
    ("*", "Then {who_small} has {n} times as many."),
)


def word_problem(rng: random.Random, num_steps: int = 2) -> tuple[str, str, str]:
    """(question, worked answer, answer); its steps are lines before that of the answer. Numbers stay from 0 to 99."""
    (name, who), thing, total = rng.choice(NAMES), rng.choice(THINGS), rng.randint(2, 9)
    sentences, lines = [f"{name} has {total} {thing}."], []
    while len(lines) < num_steps:
        sign, sentence = rng.choice(STEPS)
        if sign == "-" and not total:
            continue
        n = rng.randint(2, 3) if sign == "*" else rng.randint(1, min(9, total) if sign == "-" else 9)
        result = {"+": total + n, "-": total - n, "*": total * n}[sign]
        if result > 99:
            continue
        sentences.append(sentence.format(who=who, who_small=who.lower(), n=n))
        lines.append(f"{total}{sign}{n}={result}")
        total = result
    question = " ".join([*sentences, f"How many {thing} has {who.lower()} now?"])
    return question, "\n".join([*lines, f"#### {total}"]), str(total)


def exercise(rng: random.Random) -> tuple[str, str, str]:
    """(problem, answer in a box, answer): fractions, equations, products."""
    kind = rng.choice("fraction equation product percent".split())
    if kind == "fraction":
        first, second = (Fraction(rng.randint(1, 9), rng.randint(2, 9)) for _ in range(2))
        sign, value = rng.choice((("+", first + second), ("-", first - second), (r"\cdot", first * second)))
        problem, answer = f"Compute {_latex(first)} {sign} {_latex(second)}.", _latex(value)
    elif kind == "equation":
        a, x, b = rng.randint(2, 12), rng.randint(-12, 12), rng.randint(1, 20)
        problem, answer = f"Solve {a}x + {b} = {a * x + b} for x.", str(x)
    elif kind == "product":
        a, b = rng.randint(1, 20), rng.randint(1, 20)
        problem, answer = f"Expand (x+{a})(x+{b}).", f"x^2+{a + b}x+{a * b}"
    else:
        share, whole = 5 * rng.randint(1, 19), 20 * rng.randint(1, 50)
        problem, answer = f"What is {share}\\% of {whole}?", str(share * whole // 100)
    return problem, rf"\boxed{{{answer}}}", answer


def distinct(make: Callable, *, count: int, seed: int) -> Iterator[tuple]:
    """`count` problems with distinct questions, in the order they are drawn.

    Raises:
      ValueError: if there are too few of them.
    """
    rng, seen = random.Random(seed), set()
    for _ in range(50 * count + 1000):
        if len(seen) == count:
            return
        drawn = make(rng)
        if drawn[0] not in seen:
            seen.add(drawn[0])
            yield drawn
    if len(seen) < count:
        raise ValueError(f"found {len(seen)} distinct problems, not {count}: lower the number of problems")


def _latex(value: Fraction) -> str:
    sign = "-" if value < 0 else ""
    value = abs(value)
    return f"{sign}{value}" if value.denominator == 1 else rf"{sign}\frac{{{value.numerator}}}{{{value.denominator}}}"
