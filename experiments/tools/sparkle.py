"""What a model lacks, along the axes of SPARKLE: planning, knowledge, subproblems (arXiv 2506.04723).

    python -m experiments.tools.sparkle runs/sparkle/sft runs/sparkle --problems=256

Each run, of configs/tasks/sparkle.py, answers the same test problems in every way of rl_jax.tasks.axes, once, as it
samples in training. The table has the accuracy of each way, the gain by the plan and by the facts, the share of
subproblems that are solved, of problems of which all are, and how often such a problem is then solved as a whole.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from experiments import best_of_n
from experiments.parts.rewards import make_rewards
from experiments.parts.setup import load_params, make_setup
from experiments.parts.stored import read_config
from rl_jax.tasks import axes

Answers = Mapping[str, Sequence[tuple[int, float]]]  # way -> (problem, 1 if right) of each question


def report(answers: Answers) -> dict[str, float]:
    """The numbers of one model.

        gain/plan        accuracy(plan) - accuracy(plain)
        subproblems/all  share of problems of which every subproblem is solved
        composed         accuracy(plain) on those problems, nan if there are none

    Args:
      answers: of every way of axes.ARMS, on the same problems.
    """
    by_problem: dict[str, dict[int, list[float]]] = {}
    for arm, rows in answers.items():
        for problem, right in rows:
            by_problem.setdefault(arm, {}).setdefault(problem, []).append(right)
    accuracy = {arm: float(np.mean([right for _, right in rows])) for arm, rows in answers.items()}
    solved = {problem for problem, parts in by_problem["subproblems"].items() if all(parts)}
    whole = [by_problem["plain"][problem][0] for problem in sorted(solved)]
    return {
        **accuracy,
        **{f"gain/{arm}": accuracy[arm] - accuracy["plain"] for arm in ("plan", "knowledge", "partial")},
        "subproblems/all": len(solved) / len(by_problem["subproblems"]),
        "composed": float(np.mean(whole)) if whole else float("nan"),
    }


def answered(run: pathlib.Path, problems: int) -> Answers:
    """What a run answers to the first `problems` test problems, asked in every way.

    Raises:
      ValueError: if the run is of another task.
    """
    config, found = read_config(run).copy_and_resolve_references().unlock(), {}
    if config.task.name != "rl_jax.tasks.axes:load":
        raise ValueError(f"{run} is a run of the task {config.task.name}, not of configs/tasks/sparkle.py")
    parts = int(max(config.task.of.num_operands)) - 1
    settings = dict(split="test", samples=1, batch_size=min(64, problems))
    for arm in axes.ARMS:
        config.task.test_arms = (arm,)
        config.best_of_n = dict(settings, num_prompts=problems * (parts if arm == "subproblems" else 1))
        setup = make_setup(config)
        with make_rewards(setup) as rewards:
            judged = best_of_n.sample(setup, load_params(setup, run), rewards)
        infos = [json.loads(record["info"]) for part in judged for record in part.records]
        right = [float(x) for part in judged for x in part.result.rewards]
        rows = [(info["problem"], x) for info, x in zip(infos, right, strict=True)]
        found[arm] = [row for row in rows if row[0] < problems]
    return found


def table(reports: Mapping[str, Mapping[str, float]]) -> str:
    """A Markdown table, a column per run."""
    names = list(reports)
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    rows = [[f"{reports[name][key]:.3f}" for name in names] for key in reports[names[0]]]
    lines += [f"| {key} | " + " | ".join(row) + " |" for key, row in zip(reports[names[0]], rows, strict=True)]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=pathlib.Path, help="workdirs of runs of configs/tasks/sparkle.py")
    parser.add_argument("--problems", type=int, default=256, help="test problems")
    options = parser.parse_args(arguments)
    try:
        if options.problems < 1:
            raise ValueError(f"--problems={options.problems} must be 1 or more")
        print(table({str(run): report(answered(run, options.problems)) for run in options.runs}))
    except (ValueError, OSError) as error:
        print(f"experiments.tools.sparkle: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
