"""Countdown: make the target from all the numbers, "3 4 5=35:" -> "(3+4)*5", or with the search written out.

    direct: the expression alone.
    search: a depth-first search, one attempt per line: "3+4=7", "7+5=12", "7-5=2", ... the last line is the expression.

Puzzles are drawn from expressions, so each has a solution (TinyZero's generator draws numbers and target apart).
Source: arXiv 2504.07052.
"""

import itertools
import json
import random
from collections.abc import Iterator

from rl_jax.rewards import puzzles
from rl_jax.tasks import base, hold_out, made_problems
from rl_jax.tokenizers import CharTokenizer

ALPHABET = "0123456789+-*/()=: \n"

Item = tuple[int, str]  # a value, and the expression that it comes from


def steps(items: tuple[Item, ...]) -> Iterator[tuple[str, tuple[Item, ...]]]:
    """("3+4=7", what is left) of every operation on two of the items with a positive whole result."""
    for i, j in itertools.combinations(range(len(items)), 2):
        rest = tuple(item for place, item in enumerate(items) if place not in (i, j))
        for (a, left), (b, right) in ((items[i], items[j]), (items[j], items[i])):
            results = {"+": a + b, "*": a * b} if (a, left) == items[i] else {}
            results |= {"-": a - b} if a > b else {}
            results |= {"/": a // b} if b and a % b == 0 else {}
            for sign, value in results.items():
                yield f"{a}{sign}{b}={value}", (*rest, (value, f"({left}{sign}{right})"))


def search(numbers: list[int], target: int) -> tuple[list[str], str]:
    """(attempts in depth-first order, the first solution, "" if there is none)."""
    lines: list[str] = []

    def visit(items: tuple[Item, ...]) -> str:
        if len(items) == 1:
            return items[0][1][1:-1] if items[0][0] == target else ""
        for line, rest in steps(items):
            lines.append(line)
            found = visit(rest)
            if found:
                return found
        return ""

    found = visit(tuple((n, str(n)) for n in numbers))
    return lines, found


def draw(rng: random.Random, count: int, largest: int, targets: tuple[int, int]) -> tuple[str, str, tuple]:
    """(prompt, expression, (numbers, target)) of a puzzle with a solution in positive whole numbers."""
    while True:
        numbers = [rng.randint(1, largest) for _ in range(count)]
        items = tuple((n, str(n)) for n in numbers)
        while len(items) > 1:
            items = rng.choice([rest for _, rest in steps(items)])
        value, text = items[0]
        if targets[0] <= value <= targets[1]:
            return f"{' '.join(map(str, numbers))}={value}:\n", text[1:-1], (numbers, value)


def load(
    *,
    count: int = 3,
    largest: int = 9,
    targets: tuple[int, int] = (10, 100),
    trace: bool = False,
    max_completion: int = 200,
    num_problems: int = 4_000,
    seed: int = 0,
    data_dir: str = base.DEFAULT_DATA_DIR,
) -> base.Task:
    """The game of Countdown.

    Args:
      count: of numbers, 2 to 4.
      largest: largest number.
      targets: (least, greatest) target.
      trace: whether demonstrations show the search.
      max_completion: longest demonstration, in characters; puzzles with a longer one are left out of the SFT records.
      num_problems: distinct prompts. One in ten puzzles is held out, with its numbers in every order.
      seed: of the puzzles.
      data_dir: where the prepared dataset is stored.

    Raises:
      ValueError: if a setting is out of its range, or there are too few distinct puzzles.
    """
    if not 2 <= count <= 4 or largest < 2 or not 0 < targets[0] <= targets[1]:
        raise ValueError(
            f"count must be 2 to 4, largest at least 2 and targets positive, got {count}, {largest}, {tuple(targets)}"
        )
    arguments = {"count": int(count), "largest": int(largest), "targets": [int(n) for n in targets]}
    arguments |= {"trace": bool(trace), "max_completion": int(max_completion), "num_problems": int(num_problems)}
    arguments |= {"seed": int(seed)}

    def record(prompt, text, puzzle):
        numbers, target = puzzle
        if trace:
            lines, text = search(numbers, target)
            text = "\n".join([*lines, text])
        info = json.dumps({"numbers": numbers, "target": target})
        return {"prompt": prompt, "completion": text, "info": info}

    def make():
        drawn = made_problems.distinct(lambda rng: draw(rng, count, largest, targets), count=num_problems, seed=seed)
        splits = hold_out.by_prompt((record(*row) for row in drawn), key=hold_out.unordered)
        splits["sft_train"] = [row for row in splits["train"] if len(row["completion"]) <= max_completion]
        return splits, {"num_without_demonstration": len(splits["train"]) - len(splits["sft_train"])}

    code = [__file__, puzzles.__file__, hold_out.__file__, made_problems.__file__]
    sources = base.record_splits("countdown", make, arguments=arguments, code=code, data_dir=data_dir)
    return base.Task("countdown", CharTokenizer(ALPHABET), sources, puzzles.countdown)
