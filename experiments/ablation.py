"""Runs an ablation of configs/papers: every arm with every seed, then the table and a verdict on the paper's claim.

    python -m experiments.ablation rdpo_label_noise
    python -m experiments.ablation --list
    python -m experiments.ablation --table          # of all that have run, for the README

There are two kinds. A study is a function of experiments.studies that runs all seeds of all arms in this process. An
ablation of programs runs each arm and seed as its own process with its own workdir (runs/ablations/KEY/...), so that a
restarted one skips finished runs and resumes the one that was interrupted; further --config.x=y are passed on to each.

The claim is a list of statements, each about the mean over seeds of a metric (`judgements`). A statement is reproduced
where the whole 95 % bootstrap interval lies on the claimed side, not reproduced where all of it lies on the other one,
and else undecided; the claim needs all of its statements. Two arms are compared seed by seed.
"""

import argparse
import datetime
import importlib
import json
import pathlib
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from experiments.ablation_chart import curves_chart, interval_chart
from rl_jax import stats
from rl_jax.binding import bind
from rl_jax.logging import read_jsonl, write_atomically

PAPERS = pathlib.Path(__file__).parent.parent / "configs" / "papers"
RUNS = pathlib.Path("runs")
Values = Mapping[str, Mapping[str, Sequence[float]]]  # arm -> metric -> its value for each seed
BOUNDS = {"arm": {"metric", "arm", "at_least", "at_most"}, "increasing": {"metric", "increasing", "by"}}


def keys() -> list[str]:
    """The ablations there are."""
    return sorted(path.stem for path in PAPERS.glob("*.py") if path.stem != "__init__")


def load(key: str, *, smoke: bool = False) -> ConfigDict:
    """The ablation of configs/papers/KEY.py; with `smoke`, what its field `smoke` names is replaced by that."""
    ablation = importlib.import_module(f"configs.papers.{key}").get_ablation()
    if smoke:
        ablation.update(ablation.smoke)
    return ablation


def run_once(program: str, config: str, workdir: pathlib.Path, overrides: list[str]) -> None:
    """One run to its end, unless it ended before. Raises CalledProcessError where it fails."""
    if (workdir / "final.json").exists():
        return
    command = [sys.executable, "-m", f"experiments.{program}", f"--config={config}", f"--workdir={workdir}", *overrides]
    print("+", " ".join(command), flush=True)
    subprocess.run(command, check=True)


def gain(workdir: pathlib.Path, metric: str) -> tuple[float, float]:
    """(first, last) value of `metric` in a finished run. Raises ValueError where it was evaluated less than twice."""
    values = [row[metric] for row in read_jsonl(workdir / "metrics.jsonl") if metric in row]
    if len(values) < 2:
        raise ValueError(f"{workdir}: {metric} was evaluated {len(values)} times, a gain needs two")
    return values[0], values[-1]


def run_programs(ablation: ConfigDict, workdir: pathlib.Path, overrides: list[str]) -> Values:
    """Runs what is missing. The arms share each seed's warm start; the metrics are before, after and gain."""
    values = {arm: {"before": [], "after": [], "gain": []} for arm in ablation.arms}
    for seed in ablation.seeds:
        warm = workdir / f"seed{seed}" / "sft"
        run_once("sft", ablation.warm_start, warm, [f"--config.seed={seed}", *overrides])
        for arm, config in ablation.arms.items():
            folder = workdir / f"seed{seed}" / arm
            start = [f"--config.seed={seed}", f"--config.init_from={warm}"]
            run_once(ablation.program, config, folder, [*start, *overrides])
            before, after = gain(folder, ablation.evaluated)
            for metric, value in (("before", before), ("after", after), ("gain", after - before)):
                values[arm][metric].append(value)
    return values


def run_study(ablation: ConfigDict) -> tuple[Values, Mapping]:
    """(values, curves) of the study. Raises ValueError for a setting that it does not take, with those it does."""
    from experiments import studies  # jax and the models, which --list does not need

    fn = bind({"fn": ablation.study, **ablation.settings.to_dict()}, studies)
    outcome = fn(tuple(ablation.seeds))
    values = {
        arm: {metric: [float(value) for value in row] for metric, row in metrics.items()}
        for arm, metrics in outcome.values.items()
    }
    return values, outcome.curves


def judgements(values: Values, expected: Sequence[Mapping]) -> list[dict]:
    """Every statement of a claim with its interval and verdict.

    expected: of each statement the metric, and either `arm` with at_least and at_most (or one of them) of its mean, or
    `increasing`: arms, each of which has more of the metric than the one before it, by more than `by`.
    Raises ValueError for a statement that is neither, and for an arm or a metric that the results do not have.
    """
    found = []
    for statement in expected:
        kind = "arm" if "arm" in statement else "increasing"
        if not set(statement) <= BOUNDS[kind] or not {"metric", kind} <= set(statement) or len(statement) < 3:
            fields = " or ".join(", ".join(sorted(names)) for names in BOUNDS.values())
            raise ValueError(f"{dict(statement)} is no statement; one has the fields {fields}")
        metric = statement["metric"]

        def of(arm, metric=metric):
            if arm not in values or metric not in values[arm]:
                known = {name: sorted(metrics) for name, metrics in values.items()}
                raise ValueError(f"the results have no {metric!r} of the arm {arm!r}; they have: {known}")
            return values[arm][metric]

        if kind == "arm":
            bounds = {name: statement[name] for name in ("at_least", "at_most") if name in statement}
            said = " and ".join(f"{name.replace('_', ' ')} {bound:g}" for name, bound in bounds.items())
            pairs = [(f"{metric} of {statement['arm']} {said}", stats.bootstrap_mean(of(statement["arm"])), bounds)]
        else:
            by, arms = statement["by"], statement["increasing"]
            pairs = [
                (
                    f"{metric}: {less} < {more}" + (f" by {by:g}" if by else ""),
                    stats.paired_difference(of(more), of(less)),
                    dict(at_least=by),
                )
                for less, more in zip(arms, arms[1:], strict=False)
            ]
        for text, interval, bounds in pairs:
            verdict = stats.judge(interval, **bounds)
            found.append(dict(statement=text, interval=interval._asdict(), verdict=verdict))
    return found


def cell(values: Sequence[float]) -> str:
    """mean [low, high] of the interval."""
    return "{:.3g} [{:.3g}, {:.3g}]".format(*stats.bootstrap_mean(values))


def tables(values: Values, judged: Sequence[Mapping]) -> str:
    """Two Markdown tables: the arms with each metric, and the statements with interval and verdict."""
    metrics = list(next(iter(values.values())))
    lines = ["| arm | " + " | ".join(metrics) + " |", "|---" * (len(metrics) + 1) + "|"]
    lines += [f"| {arm} | " + " | ".join(cell(row[metric]) for metric in metrics) + " |" for arm, row in values.items()]
    lines += ["", "| statement | mean or paired difference | verdict |", "|---|---|---|"]
    for row in judged:
        lines.append("| {} | {mean:.3g} [{low:.3g}, {high:.3g}] | {} |".format(
            row["statement"], row["verdict"], **row["interval"]))
    return "\n".join(lines)


def run(key: str, workdir: pathlib.Path, overrides: list[str], *, smoke: bool = False) -> dict:
    """Runs what is missing; writes ablation.json, ablation.md and charts to workdir. Returns the first's content.

    Raises ValueError for overrides of a study: its settings stand in its file.
    """
    ablation, start, curves = load(key, smoke=smoke), time.monotonic(), {}
    if "study" in ablation and overrides:
        place = f"configs/papers/{key}.py"
        raise ValueError(f"{key} is a study, which takes no {overrides[0]}: its settings are in {place}")
    if "study" in ablation:
        values, curves = run_study(ablation)
    else:
        values = run_programs(ablation, workdir, overrides)
    judged = judgements(values, ablation.expected)
    said = [f"python -m experiments.ablation {key}", *(["--smoke"] if smoke else []), *map(shlex.quote, overrides)]
    outcome = {
        "key": key,
        "paper": ablation.paper,
        "claim": ablation.claim,
        "scaled_down": ablation.scaled_down,
        "metric": ablation.metric,
        "seeds": list(ablation.seeds),
        "values": values,
        "statements": judged,
        "verdict": stats.judge_all(row["verdict"] for row in judged),
        "table": tables(values, judged),
        "command": " ".join(said),
        "date": datetime.date.today().isoformat(),
        "wall_seconds": round(time.monotonic() - start, 1),
    }
    workdir.mkdir(parents=True, exist_ok=True)
    write_atomically(workdir / "ablation.json", json.dumps(outcome, indent=2).encode())
    write_atomically(workdir / "ablation.md", report(outcome).encode())
    measured = {arm: row[ablation.metric] for arm, row in values.items()}
    write_atomically(workdir / "ablation.svg", interval_chart(measured, title=ablation.metric).encode())
    for name, lines in curves.items():
        write_atomically(workdir / f"{name}.svg", curves_chart(lines, title=name).encode())
    print(report(outcome))
    return outcome


def report(outcome: Mapping) -> str:
    """The ablation in words and tables, Markdown."""
    return (
        "{paper}: {claim}\n\nScaled down: {scaled_down}.\n\n{table}\n\n**{verdict}**, {n} seeds, {date}, "
        "{wall_seconds:.0f} s: `{command}`".format(n=len(outcome["seeds"]), **outcome)
    )


def summary(runs: pathlib.Path) -> str:
    """One Markdown table over every ablation with a result under `runs`."""
    lines = [
        "| command | claim | result: mean over seeds [95 % interval] | judged: mean or paired difference | verdict |",
        "|---|---|---|---|---|",
    ]
    for key in keys():
        path = runs / key / "ablation.json"
        if not path.exists():
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        arms = "; ".join(f"{arm} {cell(row[found['metric']])}" for arm, row in found["values"].items())
        judged = "<br>".join(
            "{} ({mean:.3g} [{low:.3g}, {high:.3g}])".format(row["statement"], **row["interval"])
            for row in found["statements"]
        )
        lines.append(
            f"| `{found['command']}` | {found['claim']} ({found['paper']}) | {found['metric']}: {arms} "
            f"({len(found['seeds'])} seeds, {found['date']}) | {judged} | {found['verdict']} |"
        )
    return "\n".join(lines)


def listing(as_json: bool) -> str:
    """All ablations with their claims, as lines or as JSON."""
    found = {key: load(key) for key in keys()}
    if not as_json:
        return "\n".join(f"{key:24} {ablation.paper}: {ablation.claim}" for key, ablation in found.items())
    fields = ("paper", "claim", "scaled_down", "metric", "seeds")
    rows = [
        dict(key=key, kind="study" if "study" in ablation else "programs", **{name: ablation[name] for name in fields})
        for key, ablation in found.items()
    ]
    return json.dumps(rows, indent=2)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("key", nargs="?", choices=keys())
    parser.add_argument("--list", action="store_true", help="name the ablations and their claims")
    parser.add_argument("--json", action="store_true", help="with --list: as JSON")
    parser.add_argument("--table", action="store_true", help="one Markdown table of all stored results")
    parser.add_argument("--smoke", action="store_true", help="the sizes of the file's field smoke: does it run at all?")
    parser.add_argument("--workdir", type=pathlib.Path, help="default: runs/ablations/KEY; --table: runs/ablations")
    options, overrides = parser.parse_known_args(arguments)
    if options.table:
        print(summary(options.workdir or RUNS / "ablations"))
    elif options.list or options.key is None:
        print(listing(options.json))
    else:
        folder = RUNS / ("ablations_smoke" if options.smoke else "ablations")
        run(options.key, options.workdir or folder / options.key, overrides, smoke=options.smoke)


if __name__ == "__main__":
    main()
