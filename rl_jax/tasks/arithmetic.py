"""Random sums and differences, made here: "37+58=" -> "95", "37+58-12=" -> "95-12=83".

A problem is a train or a test problem by a hash of its canonical form (its signed operands, sorted), which is a
pure function of the problem: 37+58 and 58+37 are always on the same side, whatever the seed and the sizes.
"""
import hashlib
import json
import random
from collections.abc import Sequence

from rl_jax.rewards import arithmetic as reward
from rl_jax.tasks import base
from rl_jax.tokenizers import CharTokenizer

ALPHABET = "0123456789+-="
TEST_ONE_IN = 5  # one canonical problem in so many is a test problem

Problem = tuple[int, ...]  # signed operands: (37, 58, -12) is 37+58-12


def canonical(problem: Problem) -> str:
    """The name of a problem up to the order of its operands: 58+37 and 37+58 are both "+37 +58"."""
    return " ".join(f"{term:+d}" for term in sorted(problem))


def split_of(problem: Problem) -> str:
    """"train" or "test", by a hash of the canonical form."""
    digest = hashlib.sha256(canonical(problem).encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") % TEST_ONE_IN == 0 else "train"


def render(problem: Problem, *, worked: bool) -> tuple[str, str]:
    """(prompt, completion): with `worked`, every step that leaves two terms or more is written out."""
    prompt = _join(problem) + "="
    steps, terms = [], list(problem)
    while len(terms) > 1:
        terms = [terms[0] + terms[1], *terms[2:]]
        steps.append(_join(terms))
    return prompt, "=".join(steps) if worked else steps[-1]


def _join(terms: Sequence[int]) -> str:
    return str(terms[0]) + "".join(f"{term:+d}" for term in terms[1:])


def make_problems(*, num_operands: tuple[int, int], digits: int, operators: str, num_train: int, num_test: int,
                  seed: int) -> dict[str, list[Problem]]:
    """Draws distinct problems until both splits are full; ValueError where the knobs allow too few.

    The number of operands and the number of digits of each operand are uniform, then the operand is.
    """
    rng = random.Random(seed)
    wanted = {"train": num_train, "test": num_test}
    found: dict[str, dict[Problem, None]] = {"train": {}, "test": {}}  # dicts keep the order they were found in
    for _ in range(200 * (num_train + num_test) + 10_000):
        terms = []
        for place in range(rng.randint(*num_operands)):
            width = rng.randint(1, digits)
            number = rng.randint(10 ** (width - 1) if width > 1 else 0, 10 ** width - 1)
            # "-0" would be read back as "+0": zero is only added
            negative = place > 0 and rng.choice(operators) == "-" and (number > 0 or "+" not in operators)
            if negative and number == 0:
                number = rng.randint(1, 9)
            terms.append(-number if negative else number)
        problem = tuple(terms)
        split = split_of(problem)
        if len(found[split]) < wanted[split]:
            found[split].setdefault(problem)
        if all(len(found[name]) == wanted[name] for name in wanted):
            return {name: list(problems) for name, problems in found.items()}
    raise ValueError(f"found {({name: len(problems) for name, problems in found.items()})} distinct problems, asked "
                     f"for {wanted}: lower num_train/num_test or raise digits={digits} or num_operands={num_operands}")


def load(*, num_operands: Sequence[int] = (2, 3), digits: int = 2, operators: str = "+-", num_train: int = 20_000,
         num_test: int = 1_000, seed: int = 0, worked: bool = True, data_dir: str = base.DEFAULT_DATA_DIR) -> base.Task:
    """The arithmetic task.

    num_operands: (fewest, most), at least 2; digits: most digits of an operand; operators: "+", "-" or "+-";
    num_train, num_test: distinct problems; worked: completions of three and more operands show their steps.
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
    draw = dict(num_operands=(int(fewest), int(most)), digits=int(digits), operators=operators,
                num_train=int(num_train), num_test=int(num_test), seed=int(seed))

    def make():
        splits = {}
        for split, problems in make_problems(**draw).items():
            splits[split] = []
            for problem in problems:
                prompt, completion = render(problem, worked=worked)
                info = json.dumps({"answer": sum(problem), "num_operands": len(problem)})
                splits[split].append({"prompt": prompt, "completion": completion, "info": info})
        return splits, {}

    sources = base.record_splits("arithmetic", make, arguments={**draw, "worked": bool(worked)}, code=[__file__],
                                 data_dir=data_dir)
    return base.Task("arithmetic", CharTokenizer(ALPHABET), sources, reward.score)
