"""Scores recorded answers without a model: what a reward says, before it trains anything.

    python -m experiments.score ANSWERS.jsonl --reward=math
    python -m experiments.score ANSWERS.jsonl --reward=math,0.2*my_rewards:brief --prompt=question --completion=output

A line is a JSON object with the prompt, a completion and whatever the reward reads; its other columns are the reward's
`info`. Four columns have a meaning of their own if they are there: `id` and `source` of the prompt, `length` in tokens
(a whole number; without it the characters count) and `truncated` (true or false). Neighbouring lines with one prompt
are a group, for the terms that see a whole group. Prints each term's mean, range and share of non-zero values, the
failures, and the lowest and highest answers; --out writes every row to a new file.
"""

import argparse
import json
import math
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from configs import common
from experiments.parts import refusals
from experiments.parts.recorded import score_answers
from experiments.parts.reward_spec import parse_terms
from experiments.parts.rewards import Rewards
from rl_jax.core.binding import bind, resolve
from rl_jax.data.readers import BadRecords, DataError, read_objects
from rl_jax.rewards import compose
from rl_jax.rewards.output import shown
from rl_jax.rewards.pool import RewardResult
from rl_jax.rewards.terms import load_terms
from rl_jax.runs.logging import write_atomically

TYPES = {  # column -> (whether a value can be, in words)
    "length": (lambda value: type(value) is int and value >= 0, "the answer's tokens, a whole number of 0 or more"),
    "truncated": (lambda value: isinstance(value, bool), "true or false"),
}


def read_answers(path: pathlib.Path, columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """The answers of a JSONL file.

    Args:
      path: of the file.
      columns: "prompt" and "completion" -> the column that holds it.

    Raises:
      DataError: if a line is no JSON object, has no such column or no text in it, or a `length` or `truncated` of
        another type.
    """
    result, bad = [], BadRecords()
    for line, record in read_objects(path, bad):
        for name, column in columns.items():
            if not isinstance(record.get(column), str):  # an empty completion is an answer, too
                have = ", ".join(record) or "nothing"
                bad.reject(path, line, f"no text (the line has {have}); --{name}=COLUMN names another", field=column)
        for column, (good, must) in TYPES.items():
            if column in record and not good(record[column]):
                problem = f"must be {must}, got {record[column]!r:.40}; a column that means something else"
                bad.reject(path, line, f"{problem} needs a new name", field=column)
        known = {name: record[column] for name, column in columns.items()}
        info = {name: value for name, value in record.items() if name not in columns.values()}
        kept = {name: record[name] for name in ("id", "source", "length", "truncated") if name in record}
        result.append(known | {"info": info} | kept)
    if not result:
        raise DataError(f"{path}: has no lines: give a file with one JSON object per line")
    return result


def table(result: RewardResult) -> Table:
    """One row per term, and the reward."""
    shown = Table(title=f"{len(result.rewards)} answers", title_justify="left")
    for name in ("term", "mean", "lowest", "highest", "non-zero"):
        shown.add_column(name, justify="left" if name == "term" else "right")
    for name, column in [*result.components.items(), ("reward", result.rewards)]:
        numbers = (column.mean(dtype=np.float64), column.min(), column.max())
        shown.add_row(name, *(f"{number:.4g}" for number in numbers), f"{np.mean(column != 0):.1%}")
    return shown


def _check(options: argparse.Namespace) -> None:
    """Raises ValueError or FileExistsError if an option's value cannot be."""
    if options.workers < 0:
        raise ValueError(f"--workers={options.workers} must be 0 (this process) or more")
    if not 0 < options.time_limit_s < math.inf:
        raise ValueError(f"--time_limit_s={options.time_limit_s} must be above 0 seconds")
    if options.out and not options.out.absolute().parent.is_dir():
        raise ValueError(f"--out={options.out}: there is no folder {options.out.parent}")
    if options.out and options.out.exists():
        raise FileExistsError(f"{options.out} is there already: name another file, or remove it")
    bind(options.compose, compose)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.score", description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=pathlib.Path, help="JSON lines with answers, and perhaps length and truncated")
    parser.add_argument("--reward", required=True, help="terms: math,0.2*my_rewards:brief, or a table as in a config")
    parser.add_argument("--compose", default="weighted_sum", help="a function of rl_jax.rewards.compose")
    parser.add_argument("--prompt", default="prompt", help="column of the prompt")
    parser.add_argument("--completion", default="completion", help="column of the answer")
    parser.add_argument("--workers", type=int, default=2, help="processes; 0: this one, without a time limit")
    parser.add_argument("--time_limit_s", type=float, default=1.0, help="seconds per answer")
    parser.add_argument("--out", type=pathlib.Path, help="a new JSONL file for every answer with its terms and reward")
    options = parser.parse_args(argv)
    sys.path.append(os.getcwd())  # a reward beside the answers
    settings = common.base("score").reward
    settings.update(num_workers=options.workers, time_limit_s=options.time_limit_s, compose=dict(fn=options.compose))
    try:
        _check(options)
        terms = load_terms(parse_terms(options.reward), resolve)
        answers = read_answers(options.file, {"prompt": options.prompt, "completion": options.completion})
        scorer = Rewards(settings, terms)
    except (ValueError, FileExistsError) as error:
        refusals.refuse("experiments.score", str(error))
    try:
        with scorer as rewards:
            result = score_answers(rewards, answers, lambda answer: answer["prompt"])
    except ValueError as error:  # a group term asks for a column that there is not
        refusals.refuse("experiments.score", str(error))
    console = Console()
    console.print(table(result))
    if result.num_timeouts or result.num_errors:
        first = shown(result.first_error, 400)
        console.print(f"{result.num_timeouts} timed out, {result.num_errors} failed. The first: {first}", markup=False)
    order = np.argsort(result.rewards, kind="stable")
    for words, place in (("lowest", order[0]), ("highest", order[-1])):
        console.print(f"{words} {result.rewards[place]:.4g}: {answers[place]['completion'][:200]!r}", markup=False)
    if options.out:
        terms = [{name: float(column[i]) for name, column in result.components.items()} for i in range(len(answers))]
        lines = [a | {"reward": float(r), "terms": t} for a, r, t in zip(answers, result.rewards, terms, strict=True)]
        write_atomically(options.out, "".join(json.dumps(line) + "\n" for line in lines).encode())
    return 1 if result.failed.all() else 0
