"""Random sums and differences, generated: "37+58=" -> "95", "37+58-12=" -> "95=83", the running totals.

The split of a problem is a hash of its canonical form (its signed operands, sorted), a pure function of the problem:
37+58 and 58+37 are always in the same split, whatever the seed and the sizes.
"""
import hashlib
import itertools
import json
import random
from collections.abc import Sequence

from rl_jax.rewards import arithmetic as reward
from rl_jax.tasks import base
from rl_jax.tokenizers import CharTokenizer

ALPHABET = "0123456789+-="
TEST_ONE_IN = 5  # one in this many canonical problems is a test problem

Problem = tuple[int, ...]  # signed operands: (37, 58, -12) is 37+58-12


def canonical(problem: Problem) -> str:
    """The problem's name up to the order of its operands: 58+37 and 37+58 are both "+37 +58"."""
    return " ".join(f"{term:+d}" for term in sorted(problem))


def split_of(problem: Problem) -> str:
    """"train" or "test", by a hash of the canonical form."""
    digest = hashlib.sha256(canonical(problem).encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") % TEST_ONE_IN == 0 else "train"


def render(problem: Problem, *, worked: bool) -> tuple[str, str]:
    """(prompt, completion): with `worked`, all running totals, else only the answer."""
    totals = list(itertools.accumulate(problem))[1:]
    return _join(problem) + "=", "=".join(map(str, totals if worked else totals[-1:]))


def _join(terms: Sequence[int]) -> str:
    return str(terms[0]) + "".join(f"{term:+d}" for term in terms[1:])


def make_problems(*, num_operands: tuple[int, int], digits: int, operators: str, num_train: int, num_test: int,
                  seed: int) -> dict[str, list[Problem]]:
    """Samples distinct problems until both splits are full.

    The number of operands and the number of digits of each operand are uniform, then the operand is.

    Returns:
      {"train": problems, "test": problems}.

    Raises:
      ValueError: if the settings allow too few problems.
    """
    rng = random.Random(seed)
    counts = {"train": num_train, "test": num_test}
    result: dict[str, dict[Problem, None]] = {"train": {}, "test": {}}  # dicts keep the order of insertion
    for _ in range(200 * (num_train + num_test) + 10_000):
        terms = []
        for place in range(rng.randint(*num_operands)):
            width = rng.randint(1, digits)
            number = rng.randint(10 ** (width - 1) if width > 1 else 0, 10 ** width - 1)
            # "-0" would be parsed as "+0", so zero is only added
            negative = place > 0 and rng.choice(operators) == "-" and (number > 0 or "+" not in operators)
            if negative and number == 0:
                number = rng.randint(1, 9)
            terms.append(-number if negative else number)
        problem = tuple(terms)
        split = split_of(problem)
        if len(result[split]) < counts[split]:
            result[split].setdefault(problem)
        if all(len(result[name]) == counts[name] for name in counts):
            return {name: list(problems) for name, problems in result.items()}
    raise ValueError(f"found {({name: len(problems) for name, problems in result.items()})} distinct problems of "
                     f"{counts}: lower num_train/num_test or raise digits={digits} or num_operands={num_operands}")


def load(*, num_operands: Sequence[int] = (2, 3), digits: int = 2, operators: str = "+-", num_train: int = 20_000,
         num_test: int = 1_000, seed: int = 0, worked: bool = True, unfinished_share: float = 0.0,
         data_dir: str = base.DEFAULT_DATA_DIR) -> base.Task:
    """The arithmetic task.

    Args:
      num_operands: (fewest, most), at least 2.
      digits: most digits of an operand.
      operators: "+", "-" or "+-".
      num_train: distinct problems.
      num_test: distinct problems.
      seed: of the problems.
      worked: whether completions of three and more operands show their steps.
      unfinished_share: fraction of the SFT demonstrations, chosen at random, that stop at a total before the last. A
        model that imitates them stops early as often; rewards for right answers can teach it to finish.
      data_dir: where the prepared dataset is stored.

    Returns:
      Task.

    Raises:
      ValueError: if a setting is out of its range.
    """
    fewest, most = num_operands
    if not 2 <= fewest <= most <= 8:
        raise ValueError(f"num_operands must be (fewest, most) with 2 <= fewest <= most <= 8, got {num_operands}")
    if not 1 <= digits <= 9:
        raise ValueError(f"digits must be 1..9, got {digits}")
    if not operators or set(operators) - set("+-"):
        raise ValueError(f"operators must be '+', '-' or '+-', got {operators!r}")
    if num_train < 1 or num_test < 1:
        raise ValueError(f"num_train and num_test must be at least 1, got {num_train} and {num_test}")
    if not 0 <= unfinished_share <= 1:
        raise ValueError(f"unfinished_share must lie in [0, 1], got {unfinished_share}")
    if unfinished_share and (fewest < 3 or not worked):
        raise ValueError("unfinished_share needs totals to stop at: worked=True and num_operands of 3 or more")
    draw = dict(num_operands=(int(fewest), int(most)), digits=int(digits), operators=operators,
                num_train=int(num_train), num_test=int(num_test), seed=int(seed))

    def records(problems, share_unfinished):
        rng = random.Random(seed)
        for problem in problems:
            prompt, completion = render(problem, worked=worked)
            if rng.random() < share_unfinished:
                totals = completion.split("=")
                completion = "=".join(totals[: rng.randint(1, len(totals) - 1)])
            info = json.dumps({"answer": sum(problem), "num_operands": len(problem)})
            yield {"prompt": prompt, "completion": completion, "info": info}

    def make():
        problems = make_problems(**draw)
        splits = {split: list(records(chosen, 0.0)) for split, chosen in problems.items()}
        if unfinished_share:  # else the SFT records are the training records
            splits["sft_train"] = list(records(problems["train"], unfinished_share))
        return splits, {}

    arguments = {**draw, "worked": bool(worked), "unfinished_share": float(unfinished_share)}
    sources = base.record_splits("arithmetic", make, arguments=arguments, code=[__file__], data_dir=data_dir)
    return base.Task("arithmetic", CharTokenizer(ALPHABET), sources, reward.score)
