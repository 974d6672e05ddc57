"""RandomCalculation, arithmetic that cannot have leaked: it is drawn here. "Evaluate 7*4^2.\\n" -> "\\boxed{112}".

An expression of n steps joins two of fewer steps with + - * /; operands are integers, fractions, squares and cubes of
integers. Values are exact fractions. Source: arXiv 2507.10532, whose generator is recalled.
"""

import json
import random
from collections.abc import Sequence
from fractions import Fraction

from rl_jax.rewards import exact
from rl_jax.tasks import base, hold_out, made_problems
from rl_jax.tokenizers import CharTokenizer

ALPHABET = "0123456789+-*/^() .\\abdelotuvxEn{}\n"
MAX_VALUE = 10**12  # of numerators and denominators on the way
OPERANDS = ("integer", "fraction", "square", "cube")


def operand(rng: random.Random, largest: int, kinds: Sequence[str]) -> tuple[str, Fraction]:
    """(text, value) of an integer, a fraction, a square or a cube of integers from 0 to `largest`."""
    kind, n = rng.choice(kinds), rng.randint(0, largest)
    if kind == "fraction":
        bottom = rng.randint(1, largest)
        return f"({n}/{bottom})", Fraction(n, bottom)
    power = {"integer": 1, "square": 2, "cube": 3}[kind]
    return (str(n) if power == 1 else f"{n}^{power}"), Fraction(n) ** power


def expression(rng: random.Random, steps: int, largest: int, kinds: Sequence[str]) -> tuple[str, Fraction]:
    """(text, exact value) with `steps` operations; a division by zero or a huge value is drawn again."""
    if steps == 0:
        return operand(rng, largest, kinds)
    while True:
        left_steps = rng.randint(0, steps - 1)
        left, a = expression(rng, left_steps, largest, kinds)
        right, b = expression(rng, steps - 1 - left_steps, largest, kinds)
        sign = rng.choice("+-*/")
        if sign == "/" and b == 0:
            continue
        value = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else a}[sign]
        if max(abs(value.numerator), value.denominator) <= MAX_VALUE:
            text = [f"({part})" if count else part for part, count in
                    ((left, left_steps), (right, steps - 1 - left_steps))]  # fmt: skip
            return sign.join(text), value


def load(
    *,
    steps: Sequence[int] = (1, 2),
    largest: int = 100,
    operands: Sequence[str] = OPERANDS,
    num_problems: int = 4_000,
    seed: int = 0,
    data_dir: str = base.DEFAULT_DATA_DIR,
) -> base.Task:
    """Random calculations with the graded reward of rl_jax.rewards.exact.graded_number.

    Args:
      steps: numbers of operations; each problem has one of them, the same share of each.
      largest: largest integer of an operand.
      operands: of "integer", "fraction", "square", "cube".
      num_problems: distinct ones, of which about one in ten is held out, with its operands in every order.
      seed: of the problems.
      data_dir: where the prepared dataset is stored.

    Raises:
      ValueError: if a setting is out of its range, or there are too few distinct problems.
    """
    steps, operands = [int(n) for n in steps], list(operands)
    if not steps or not all(1 <= n <= 20 for n in steps):
        raise ValueError(f"steps must be from 1 to 20, at least one, got {steps}")
    if not operands or set(operands) - set(OPERANDS):
        raise ValueError(f"operands={operands} must be of {', '.join(OPERANDS)}")
    if largest < 1:
        raise ValueError(f"largest must be at least 1, got {largest}")
    arguments = {"steps": steps, "largest": int(largest), "operands": operands}
    arguments |= {"num_problems": int(num_problems), "seed": int(seed)}

    def draw(rng):
        text, value = expression(rng, rng.choice(steps), largest, operands)
        return f"Evaluate {text}.\n", str(value), str(value)

    def make():
        drawn = made_problems.distinct(draw, count=num_problems, seed=seed)
        records = (
            {"prompt": prompt, "completion": rf"\boxed{{{answer}}}", "info": json.dumps({"answer": answer})}
            for prompt, answer, _ in drawn
        )
        return hold_out.by_prompt(records, key=hold_out.unordered), {}

    code = [__file__, hold_out.__file__, made_problems.__file__]
    sources = base.record_splits("random_calculation", make, arguments=arguments, code=code, data_dir=data_dir)
    return base.Task("random_calculation", CharTokenizer(ALPHABET), sources, exact.graded_number)
