"""Implicit rewards of DPO runs beside explicit reward models, in and out of their distribution: arXiv 2409.03650.

    python -m experiments.tools.implicit_rewards runs/dpo runs/reward_model --data hh=PATH --data llmbar=FOLDER

A table: one row per run, the accuracy of sign(r_w - r_l) on each set of pairs, r = beta sum_t log(pi / ref) for a run
of experiments.dpo and the head's reward for one of experiments.reward_model. The first set is the one in distribution;
`drop` is its accuracy less the mean of the others. Sets are names of rl_jax.preferences, NAME=PATH or NAME.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.parts import pair_scores
from rl_jax.rewards.benchmarks import pair_accuracy


class Row(NamedTuple):
    """One run: its kind ("explicit" or "implicit"), and its accuracy on each set."""

    run: str
    kind: str
    accuracies: list[float]

    def drop(self) -> float:
        """The accuracy on the first set less the mean of the others; 0 if there is none."""
        return self.accuracies[0] - float(np.mean(self.accuracies[1:])) if len(self.accuracies) > 1 else 0.0


def measure(runs: Sequence[str], sets: Sequence[tuple[str, list[dict]]]) -> list[Row]:
    """The accuracy of each run on each set (name, records)."""
    rows = []
    for run in runs:
        model, kind = pair_scores.load_scorer(run)
        gaps = [pair_scores.gaps(model, records) for _, records in sets]
        rows.append(Row(run, kind, [pair_accuracy(gap, np.zeros_like(gap)) for gap in gaps]))
    return rows


def table(rows: Sequence[Row], names: Sequence[str]) -> str:
    """The table in Markdown."""
    lines = [f"| run | reward | {' | '.join(names)} | drop |", "|---|---|" + "---|" * (len(names) + 1)]
    for row in rows:
        numbers = " | ".join(f"{x:.3f}" for x in (*row.accuracies, row.drop()))
        lines.append(f"| {row.run} | {row.kind} | {numbers} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="workdirs of experiments.dpo, online_dpo or reward_model")
    parser.add_argument("--data", action="append", required=True, help="NAME or NAME=PATH; again for each further set")
    parser.add_argument("--split", default="test", choices=("train", "test", "all"))
    parser.add_argument("--limit", type=int, default=0, help="most pairs of each set; 0: all")
    parser.add_argument("--data_dir", default="", help="where the pairs are prepared")
    options = parser.parse_args(arguments)
    try:
        sets = []
        for text in options.data:
            name, _, path = text.partition("=")
            records = pair_scores.read_pairs(name, path, options.split, options.limit, options.data_dir)
            sets.append((text, records))
        rows = measure(options.runs, sets)
    except (ValueError, OSError) as error:
        print(f"experiments.tools.implicit_rewards: {error}", file=sys.stderr)
        return 2
    print(table(rows, [name for name, _ in sets]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
