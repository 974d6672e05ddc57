"""Searches the weights of a reward's terms: each generation of candidates trains in one compiled program.

    python -m experiments.tools.reward_search --config=configs/control/rewards.py:terms --workdir=runs/search
    python -m experiments.tools.reward_search --config=... --workdir=... --proposals=preference --beta=5
    python -m experiments.tools.reward_search --config=... --workdir=... --proposals=candidates.jsonl

A candidate is a weight for each of config.algorithm.relabel.terms_of. It is trained on the tuning seeds and judged by
eval/return, the environment's own reward. At the end the best one and the hand-written one train on test seeds that no
candidate has seen. --proposals: `random` (around the best so far), `preference` (the best and the worst are chosen by
votes between pairs; the task's score only votes), or a file with a JSON object of weights per line, `--candidates` of
them per generation: a person or a language model may append to it after reading search.jsonl, which has each
candidate's score and the mean of each term. The same command goes on where the last one stopped; other
settings are refused.
"""

import argparse
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from experiments.parts import check_config
from experiments.parts.reward_texts import score_of
from experiments.parts.reward_trials import ROWS, TEST_SEEDS, append, check_resumed, given, run_fields
from experiments.sweep.points import load_config, set_fields
from rl_jax.control import search
from rl_jax.data import readers
from rl_jax.runs import disk
from rl_jax.runs.logging import read_jsonl

PREFIX = "algorithm.relabel.weights."


def trained(
    config: ConfigDict, candidates: Sequence[search.Weights], seeds: Sequence[Sequence[int]]
) -> list[dict[str, Any]]:
    """Trains every candidate on its seeds, all in one program.

    Args:
      config: of experiments.control.ppo with the relabelling by_terms.
      candidates: the weights.
      seeds: of each candidate's runs, as many for each.

    Returns:
      One row per candidate: its weights, the score of each seed, their mean, and the mean of each term.
    """
    fields = [tuple((PREFIX + name, float(w)) for name, w in weights.items()) for weights in candidates]
    by_candidate = {name: rows[-1] for name, rows in run_fields(config, fields, seeds)[0].items()}
    terms = [name for name in by_candidate if name.removeprefix("relabel/") in candidates[0]]
    return [
        {
            "weights": dict(weights),
            "scores": by_candidate["eval/return"][i].tolist(),
            "score": float(np.mean(by_candidate["eval/return"][i])),
            "terms": {name.removeprefix("relabel/"): float(np.mean(by_candidate[name][i])) for name in terms},
        }
        for i, weights in enumerate(candidates)
    ]


def from_file(path: pathlib.Path, names: Sequence[str], generation: int, count: int) -> list[search.Weights]:
    """The candidates of a generation, `count` lines of a file.

    Raises:
      ValueError: if the file is missing, has too few lines, or a line is no weight for each name.
    """
    if not path.is_file():
        raise ValueError(f"--proposals={path}: neither random, preference nor a file")
    lines = list(readers.read_objects(path, readers.BadRecords()))[generation * count : (generation + 1) * count]
    if len(lines) < count:
        first = generation * count + 1
        raise ValueError(f"{path}: generation {generation} needs lines {first} to {first + count - 1}")
    result = []
    for number, weights in lines:
        try:
            good = set(weights) == set(names) and all(math.isfinite(float(w)) for w in weights.values())
        except (ValueError, TypeError):
            good = False
        if not good:
            raise ValueError(f"{path}:{number} must be a JSON object with a number for each of {', '.join(names)}")
        result.append({name: float(weights[name]) for name in names})
    return result


def proposed(options: argparse.Namespace, hand: search.Weights, rows: list[dict[str, Any]]) -> list[search.Weights]:
    """The candidates of the next generation, from the rows of those before; the same rows give the same candidates."""
    count = options.candidates
    generation = len(rows) // count
    if options.proposals not in ("random", "preference"):
        return from_file(pathlib.Path(options.proposals), sorted(hand), generation, count)
    rng = np.random.default_rng([options.seed, generation])
    if not rows:
        return [dict(hand), *search.at_large(rng, hand, count - 1)]
    if options.proposals == "random":
        best = max(rows, key=score_of)
        return search.around(rng, best["weights"], count)
    last = rows[-count:]
    best, worst = search.voted(rng, [score_of(row) for row in last], beta=options.beta)
    return search.around(rng, last[best]["weights"], count, worst=last[worst]["weights"])


def chosen(options: argparse.Namespace, rows: list[dict[str, Any]]) -> search.Weights:
    """The candidate that goes to the test seeds: the best score, or the last generation's winner by votes."""
    if options.proposals != "preference":
        return max(rows, key=score_of)["weights"]
    last = rows[-options.candidates :]
    rng = np.random.default_rng([options.seed, len(rows)])
    return last[search.voted(rng, [score_of(row) for row in last], beta=options.beta)[0]]["weights"]


def run(config: ConfigDict, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The search.

    Args:
      config: of experiments.control.ppo with the relabelling by_terms.
      options: of the command line.

    Returns:
      The rows of the test: the chosen candidate's and the hand-written one's.

    Raises:
      ValueError: if the config names no terms, or its environment gives no evaluation.
      disk.InUseError: if another search is going on in options.workdir.
    """
    if config.program != "control.ppo" or config.algorithm.relabel.fn != "by_terms" or not config.eval.num_episodes:
        raise ValueError(
            "reward_search needs a config of experiments.control.ppo with algorithm.relabel.fn='by_terms' and "
            "eval.num_episodes of 1 or more"
        )
    check_config.check(config)
    hand = {name: float(weight) for name, weight in sorted(config.algorithm.relabel.weights.items())}
    disk.lock(options.workdir)
    path, seeds = options.workdir / ROWS, range(options.seeds)
    rows = read_jsonl(path) if path.exists() else []
    tested = [row for row in rows if row["part"] == "test"]
    rows = [row for row in rows if row["part"] == "tune"]
    check_resumed(path, config, options, rows, tested)
    while len(rows) < options.generations * options.candidates:
        candidates = proposed(options, hand, rows)
        here = {"part": "tune", "generation": len(rows) // options.candidates}
        new = [row | here for row in trained(config, candidates, [seeds] * len(candidates))]
        append(path, new)
        rows += new
        print(f"generation {new[0]['generation']}: best {max(map(score_of, new)):.3f}", flush=True)
    if not tested:
        unseen = range(TEST_SEEDS, TEST_SEEDS + options.test_seeds)
        pair = trained(config, [chosen(options, rows), hand], [unseen] * 2)
        tested = [row | {"part": "test", "name": name} for row, name in zip(pair, ("found", "hand"), strict=True)]
        append(path, tested)
    return tested


def table(rows: list[dict[str, Any]]) -> str:
    """The test as a Markdown table."""
    lines = ["| reward | weights | mean return, test seeds | seeds |", "|---|---|---|---|"]
    for row in rows:
        weights = ", ".join(f"{name} {weight:.3g}" for name, weight in row["weights"].items())
        lines.append(f"| {row['name']} | {weights} | {row['score']:.3f} | {len(row['scores'])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs the search of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="configs/control/rewards.py:terms, or a config of your own")
    parser.add_argument("--workdir", required=True, type=pathlib.Path)
    parser.add_argument("--proposals", default="random", help="random, preference or a file of weights")
    parser.add_argument("--generations", type=int, default=3)
    parser.add_argument("--candidates", type=int, default=8, help="per generation")
    parser.add_argument("--seeds", type=int, default=2, help="tuning seeds per candidate")
    parser.add_argument("--test_seeds", type=int, default=5, help="further seeds for the chosen and the hand-written")
    parser.add_argument("--beta", type=float, default=math.inf, help="rationality of the voter (preference)")
    parser.add_argument("--seed", type=int, default=0, help="of the proposals")
    options, overrides = parser.parse_known_args()
    try:
        print(table(run(set_fields(load_config(options.config), given(overrides)), options)), end="")
    except (OSError, ValueError, disk.InUseError) as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
