"""Satisfiability, generated: "aBc bcD:" -> "0110", an assignment of a, b, c, d; a capital is a negated variable.

A level (n, k, l) has k variables and l clauses of n different variables each. Its difficulty is SATURN's estimate. Each
formula is satisfied by an assignment that was drawn first. A formula's split is a hash of its clauses, sorted.
"""

import hashlib
import itertools
import json
import math
import random
import string
from collections.abc import Sequence

from rl_jax.rewards import sat as reward
from rl_jax.tasks import base
from rl_jax.tokenizers import CharTokenizer

TEST_ONE_IN = 5  # one in this many formulas is a test formula
LARGEST_SEARCHED = 10  # variables up to which the first solution is the demonstration, and not the one drawn

Formula = tuple[tuple[int, ...], ...]


def difficulty(n: int, k: int, l: int) -> float:  # noqa: E741  the paper's letters
    """SATURN's D = log2 k + 2 log2 l - n + k / n; 9.63 for (3, 5, 20). Source: arXiv 2505.16368."""
    return math.log2(k) + 2 * math.log2(l) - n + k / n


def make_formula(rng: random.Random, n: int, k: int, l: int) -> tuple[Formula, list[bool]]:  # noqa: E741
    """(l different clauses of n variables each, an assignment of k variables that satisfies them)."""
    assignment = [rng.random() < 0.5 for _ in range(k)]
    clauses: dict[tuple[int, ...], None] = {}
    while len(clauses) < l:
        variables = sorted(rng.sample(range(1, k + 1), n))
        clause = tuple(v if rng.random() < 0.5 else -v for v in variables)
        if all(reward.satisfied([clause], assignment)):
            clauses.setdefault(clause)
    return tuple(clauses), assignment


def solutions(formula: Formula, k: int) -> list[str]:
    """All satisfying assignments in rising order, by trying the 2^k."""
    found = (digits for digits in itertools.product("01", repeat=k))
    return ["".join(d) for d in found if all(reward.satisfied(formula, [x == "1" for x in d]))]


def render(formula: Formula) -> str:
    """The prompt of a formula."""
    letters = [[(string.ascii_lowercase if v > 0 else string.ascii_uppercase)[abs(v) - 1] for v in c] for c in formula]
    return " ".join("".join(clause) for clause in letters) + ":"


def split_of(formula: Formula) -> str:
    """"train" or "test", by a hash of the sorted clauses."""
    digest = hashlib.sha256(repr(sorted(formula)).encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") % TEST_ONE_IN == 0 else "train"


def possible(n: int, k: int) -> int:
    """The number of clauses that an assignment satisfies."""
    return math.comb(k, n) * (2**n - 1)


def _level_records(level: int, sizes: tuple[int, int, int], wanted: dict[str, int], seed: int) -> dict[str, list[dict]]:
    """The records of one level, by split: distinct formulas until both splits are full."""
    n, k, _ = sizes
    rng, seen = random.Random(f"{seed} {sizes}"), set()
    found: dict[str, list[dict]] = {split: [] for split in wanted}
    for _ in range(50 * sum(wanted.values()) + 1000):
        if all(len(found[split]) == count for split, count in wanted.items()):
            return found
        formula, drawn = make_formula(rng, *sizes)
        name, split = tuple(sorted(formula)), split_of(formula)
        if name in seen or len(found[split]) == wanted[split]:
            continue
        seen.add(name)
        first = solutions(formula, k)[0] if k <= LARGEST_SEARCHED else "".join("01"[value] for value in drawn)
        info = {
            "clauses": [list(clause) for clause in formula],
            "variables": k,
            "level": level,
            "difficulty": round(difficulty(*sizes), 4),
            "source": "sat_{}_{}_{}".format(*sizes),
        }
        found[split].append({"prompt": render(formula), "completion": first, "info": json.dumps(info)})
    have = {split: len(rows) for split, rows in found.items()}
    raise ValueError(f"level {sizes} has too few formulas: found {have} of {wanted}. Lower num_train and num_test")


def load(
    *,
    levels: Sequence[Sequence[int]] = ((3, 4, 6), (3, 5, 12), (3, 5, 20)),
    test_levels: Sequence[int] = (),
    num_train: int = 4_000,
    num_test: int = 300,
    seed: int = 0,
    data_dir: str = base.DEFAULT_DATA_DIR,
) -> base.Task:
    """The SAT task. The info of a record has its level, difficulty and source, for config.sample.prompts.

    Args:
      levels: (n, k, l) each: literals per clause, variables (26 at most), clauses.
      test_levels: indices of the levels of the test split; none: all.
      num_train: formulas per level.
      num_test: formulas per level.
      seed: of the formulas.
      data_dir: where the prepared dataset is stored.

    Returns:
      Task.

    Raises:
      ValueError: if a setting is out of its range.
    """
    levels = tuple(tuple(int(x) for x in level) for level in levels)
    for sizes in levels:
        if len(sizes) != 3 or not 1 <= sizes[0] <= sizes[1] <= 26 or not 1 <= sizes[2] <= possible(*sizes[:2]):
            raise ValueError(f"a level is (n, k, l) with 1 <= n <= k <= 26 and l clauses that exist, got {sizes}")
    chosen = tuple(int(level) for level in test_levels) or tuple(range(len(levels)))
    if not levels or num_train < 1 or num_test < 1 or not set(chosen) <= set(range(len(levels))):
        raise ValueError(
            f"levels must not be empty, num_train and num_test at least 1 and test_levels indices of levels, got "
            f"{len(levels)} levels, {num_train}, {num_test} and {chosen}"
        )
    counts = dict(num_train=int(num_train), num_test=int(num_test))

    def make():
        splits: dict[str, list[dict]] = {"train": [], "test": []}
        for level, sizes in enumerate(levels):
            wanted = {"train": counts["num_train"], "test": counts["num_test"]}
            made = _level_records(level, sizes, wanted, int(seed))
            splits["train"] += made["train"]
            splits["test"] += made["test"] if level in chosen else []
        return splits, {}

    arguments = dict(levels=levels, test_levels=chosen, **counts, seed=int(seed))
    code = [__file__, reward.__file__]
    sources = base.record_splits("sat", make, arguments=arguments, code=code, data_dir=data_dir)
    largest = max(k for _, k, _ in levels)
    alphabet = string.ascii_lowercase[:largest] + string.ascii_uppercase[:largest] + "01 :"
    return base.Task("sat", CharTokenizer(alphabet), sources, reward.score)
