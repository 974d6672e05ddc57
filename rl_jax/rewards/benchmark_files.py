"""Reward model benchmarks as their files have them, and the tables of their scores. No model is run here; no jax.

RewardBench 2 (arXiv 2506.01937)   a line: id, prompt, chosen [texts], rejected [texts], subset
RewardMATH (arXiv 2410.01729)      a row: problem, problem_id, eval_solution [steps], solution_type
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rl_jax.data import readers
from rl_jax.rewards import benchmarks

TIES = "Ties"


class Item(NamedTuple):
    """A prompt with right and wrong responses, each a list of steps (one step: a whole text).

    Attributes:
      prompt: text.
      right: of each right response its steps.
      wrong: of each wrong one.
      subset: name of the part of the benchmark.
      id: as in the file.
    """

    prompt: str
    right: list[list[str]]
    wrong: list[list[str]]
    subset: str
    id: str


def read_reward_bench_2(path: str | pathlib.Path) -> list[Item]:
    """RewardBench 2, JSONL (or .json, one array).

    Raises:
      readers.DataError: if a record lacks a field or has one of another kind.
    """
    items = []
    for line, row, reject in _rows(path):
        for field, kind in (("prompt", str), ("chosen", list), ("rejected", list), ("subset", str)):
            if not isinstance(row.get(field), kind) or not row[field]:
                reject(line, f"expected {kind.__name__}, found {row.get(field)!r:.40}", field)
        sides = [[[text] for text in row[field]] for field in ("chosen", "rejected")]
        items.append(Item(row["prompt"], *sides, row["subset"], str(row.get("id", line))))
    return items


def read_reward_math(path: str | pathlib.Path) -> list[Item]:
    """RewardMATH, one JSON array (or JSONL); its rows are gathered by problem_id.

    Raises:
      readers.DataError: if a row lacks a field, or a problem has no right or no wrong solution.
    """
    found: dict[str, Item] = {}
    for line, row, reject in _rows(path):
        steps, kind = row.get("eval_solution"), row.get("solution_type")
        if not isinstance(steps, list) or not steps or not all(isinstance(step, str) for step in steps):
            reject(line, f"expected a list of texts, found {steps!r:.40}", "eval_solution")
        if kind not in ("chosen", "rejected"):
            reject(line, f"expected chosen or rejected, found {kind!r:.40}", "solution_type")
        if not isinstance(row.get("problem"), str) or "problem_id" not in row:
            reject(line, "a row has a problem and a problem_id", "problem")
        key = str(row["problem_id"])
        item = found.setdefault(key, Item(row["problem"], [], [], str(row.get("subject", "")), key))
        (item.right if kind == "chosen" else item.wrong).append(steps)
    for item in found.values():
        if not item.right or not item.wrong:
            raise readers.DataError(f"{path}: problem {item.id} has no {'wrong' if item.right else 'right'} solution")
    return list(found.values())


def score_items(items: Sequence[Item], score: Callable[[list[str], list[list[str]]], np.ndarray]) -> list[tuple]:
    """(scores of the right responses, of the wrong ones), float64 arrays, of each item.

    Args:
      items: of a benchmark.
      score: (prompts, responses as lists of steps) -> float [N], called once.
    """
    prompts = [item.prompt for item in items for _ in (*item.right, *item.wrong)]
    responses = [steps for item in items for steps in (*item.right, *item.wrong)]
    values, result, start = np.asarray(score(prompts, responses), np.float64), [], 0
    if values.shape != (len(prompts),):
        raise ValueError(f"{len(prompts)} responses were scored with an array of shape {values.shape}")
    for item in items:
        middle, end = start + len(item.right), start + len(item.right) + len(item.wrong)
        result.append((values[start:middle], values[middle:end]))
        start = end
    return result


def reward_bench_2_table(items: Sequence[Item], scores: Sequence[tuple]) -> dict[str, float]:
    """The accuracy of each subset, the score of Ties, and `score`, the mean over subsets.

    Of the subset Ties the ids are "ref:N" (one right answer) and "tied:N" (several), as rewardbench 0.1.4 reads them.

    Raises:
      ValueError: if an id of Ties has no partner, or an item outside of it has several right answers.
    """
    table: dict[str, float] = {}
    for subset in dict.fromkeys(item.subset for item in items):
        own = [(item, *pair) for item, pair in zip(items, scores, strict=True) if item.subset == subset]
        if subset == TIES:
            table[subset] = benchmarks.reward_bench_ties(_tied(own))
            continue
        if several := [item.id for item, right, _ in own if len(right) != 1]:
            raise ValueError(f"{subset}: item {several[0]} has several right answers, which only {TIES} may have")
        best = [benchmarks.reward_bench_2([[*right, *wrong]]) for _, right, wrong in own]
        table[subset] = float(np.mean(best))
    return table | {"score": float(np.mean(list(table.values())))}


def reward_math_table(items: Sequence[Item], scores: Sequence[tuple]) -> dict[str, float]:
    """accuracy, accuracy_ties and mrr over all problems, and the accuracy of each subject."""
    rows = [benchmarks.reward_math(*pair) for pair in scores]
    table = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    for subset in dict.fromkeys(item.subset for item in items if item.subset):
        own = [row["accuracy"] for item, row in zip(items, rows, strict=True) if item.subset == subset]
        table[subset] = float(np.mean(own))
    return table


def _tied(own: Sequence[tuple]) -> list[tuple]:
    """The items of Ties in pairs: (right, wrong, right of the second, wrong of the second)."""
    sides: dict[str, dict[str, tuple]] = {}
    for item, right, wrong in own:
        kind, _, number = item.id.partition(":")
        sides.setdefault(number, {})[kind] = (right, wrong)
    for number, pair in sides.items():
        if set(pair) != {"ref", "tied"}:
            raise ValueError(f"{TIES}: expected the ids ref:{number} and tied:{number}, found only {sorted(pair)}")
    return [(*pair["ref"], *pair["tied"]) for pair in sides.values()]


def _rows(path: str | pathlib.Path):
    """Yields (line, object, reject(line, problem, field)) of a file."""
    path, bad = pathlib.Path(path), readers.BadRecords()
    read = readers.read_json_list if ".json" in path.suffixes else readers.read_objects

    def reject(line, problem: str, field: str) -> None:
        bad.reject(path, line, problem, field=field)

    for line, row in read(path, bad):
        yield line, row, reject
