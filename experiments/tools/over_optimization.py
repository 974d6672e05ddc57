"""What runs on a learned reward have gained: the proxy and the gold reward of each evaluation, and the KL.

    python -m experiments.tools.over_optimization runs/rlhf_ppo runs/rlhf_ppo_ensemble

Over-optimisation (arXiv 2210.10760, 2310.02743) is a gold reward that falls while its proxy still rises. The column
`lost` says how much of the best gold reward so far is gone. The second table has Spearman's correlation of proxy and
gold over the evaluations of each run, up to the best gold reward and from it on: what a run optimises is what is wanted
only as long as it is positive (objective mismatch, "The Alignment Ceiling", Lambert and Calandra, 2023).
"""

import argparse
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scipy import stats

from experiments.report.run_page import run_labels
from rl_jax.runs.logging import read_jsonl

GOLD, PROXY = "eval/task", "eval/reward"


class Point(NamedTuple):
    """One evaluation.

    Attributes:
      step: of the run.
      kl: k1 to the reference in the step, per token, in nats; 0 before the first step, nan if it was not
        measured or not finite.
      proxy: mean reward of held-out prompts.
      gold: the same, of the task's own reward.
    """

    step: int
    kl: float
    proxy: float
    gold: float


def points_of(workdir: pathlib.Path) -> list[Point]:
    """The evaluations of a run on a judge; one without a finite gold reward or proxy is left out.

    Raises:
      ValueError: if the run has none, or logs no gold reward.
    """
    path = workdir / "metrics.jsonl"
    rows = read_jsonl(path) if path.exists() else []
    rows = [row for row in rows if row.get(GOLD) is not None and row.get(PROXY) is not None]
    points = [Point(row["step"], _kl_of(row), row[PROXY], row[GOLD]) for row in rows]
    if not points:
        raise ValueError(f"{workdir}: no row of metrics.jsonl has {PROXY} and {GOLD}: give a run with config.judge")
    return points


def _kl_of(row: Mapping[str, Any]) -> float:
    """0 before the first step; nan if the row has none, or one that was not finite (null in the file)."""
    kl = row.get("kl/k1")
    return kl if kl is not None else math.nan if row["step"] else 0.0


def lost(points: list[Point]) -> float:
    """Best gold reward minus the last one."""
    return max(point.gold for point in points) - points[-1].gold


def table(runs: dict[str, list[Point]]) -> str:
    """The evaluations of all runs as a Markdown table."""
    lines = ["| run | step | KL | proxy | gold | lost |", "|---|---|---|---|---|---|"]
    for name, points in runs.items():
        for number, point in enumerate(points):
            loss = lost(points[: number + 1])
            numbers = f"{point.kl:.3f} | {point.proxy:.3f} | {point.gold:.3f} | {loss:.3f}"
            lines.append(f"| {name} | {point.step} | {numbers} |")
    return "\n".join(lines) + "\n"


def correlation(points: list[Point]) -> float:
    """Spearman's correlation of proxy and gold; nan for fewer than three points, or where one of them never changes."""
    proxy, gold = [point.proxy for point in points], [point.gold for point in points]
    if len(points) < 3 or len(set(proxy)) == 1 or len(set(gold)) == 1:
        return math.nan
    return float(stats.spearmanr(proxy, gold).statistic)


def correlations(runs: dict[str, list[Point]]) -> str:
    """The correlations of all runs as a Markdown table; `-` where there is none."""
    lines = ["| run | all | up to the best gold | from it on |", "|---|---|---|---|"]
    for name, points in runs.items():
        best = max(range(len(points)), key=lambda i, points=points: points[i].gold)
        found = [correlation(part) for part in (points, points[: best + 1], points[best:])]
        lines.append(f"| {name} | " + " | ".join("-" if math.isnan(x) else f"{x:.2f}" for x in found) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables of the runs on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=pathlib.Path, help="workdirs of experiments.ppo or experiments.grpo")
    try:
        folders = parser.parse_args(arguments).runs
        runs = {name: points_of(folder) for name, folder in zip(run_labels(folders), folders, strict=True)}
        print(table(runs), correlations(runs), sep="\n", end="")
    except ValueError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
