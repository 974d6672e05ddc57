"""Trains the classic environments over 10 seeds and compares their returns with published ones.

    python -m experiments.tools.control_levels                          # all environments (make control-levels)
    python -m experiments.tools.control_levels acrobot --config.mesh=seeds:2
    python -m experiments.tools.control_levels --smoke                  # seconds: does it run?

Each environment is one run of experiments.control.ppo in a folder of its own; finished runs are skipped, interrupted
ones resume, those of other settings are refused. The value of a seed is the mean return of its last evaluation, over
config.eval.num_episodes whole episodes that are not trained on. The command writes levels.md, levels.json and, per
environment, a report.html with the curves.

A level is for each seed (then all have to reach it) or for the mean over the seeds. The latter is reached if the whole
95 % interval of the mean lies above it, not reached if all of it lies below, and undecided otherwise.
"""

import argparse
import datetime
import json
import pathlib
import shlex
from collections.abc import Sequence

from configs.control.levels import LEVELS, Level
from experiments.ablation.cli import SPENT
from experiments.ablation.once import check_same, run_once
from experiments.report import cli
from rl_jax import stats
from rl_jax.runs.logging import read_jsonl, write_atomically
from rl_jax.runs.run_record import is_complete, read_json

CONFIG = "configs/control/environments.py"
FREE = ("group", "algorithm.support")  # runs trained in lockstep; for categorical critics, which no level uses
SAID = {stats.REPRODUCED: "reached", stats.NOT_REPRODUCED: "not reached", stats.UNDECIDED: "undecided"}


def argument(level: Level, smoke: bool) -> str:
    """The config of a level's run."""
    return f"{CONFIG}:{level.word}" + ",smoke" * smoke


def row_of(level: Level, workdir: pathlib.Path, *, smoke: bool = False) -> dict:
    """The result of a finished run for its level, as plain JSON data."""
    config, values = read_json(workdir / "config.json"), read_json(workdir / "final.json")["metrics"]["eval/return"]
    interval = stats.bootstrap_mean(values)
    reached = sum(value >= level.level for value in values)
    if smoke:
        verdict = "not judged"  # episodes are cut off, which flatters the return if each step costs 1
    elif level.of == "seeds":
        verdict = SAID[stats.REPRODUCED if reached == len(values) else stats.NOT_REPRODUCED]
    else:
        verdict = SAID[stats.judge(interval, at_least=level.level)]
    return {
        **level._asdict(),
        "steps": read_jsonl(workdir / "metrics.jsonl")[-1]["env_steps"],
        "episodes": config["eval"]["num_episodes"],
        "policy": "mode" if config["eval"]["greedy"] else "sampled",
        "values": values,
        "interval": interval._asdict(),
        "worst": min(values),
        "reached": reached,
        "verdict": verdict,
        "seconds": sum(row["seconds"] for row in read_jsonl(workdir / SPENT)) if (workdir / SPENT).exists() else None,
        "command": f"python -m experiments.control.ppo --config={argument(level, smoke)}",
    }


def table(rows: Sequence[dict]) -> str:
    """The rows in Markdown, with the sources of the levels below."""
    lines = [
        "| environment | steps per seed | published | ours: mean over seeds [95 % interval] | worst seed | seeds at it "
        "| verdict | time | command |",
        "|---" * 9 + "|",
    ]
    for row in rows:
        time = "-" if row["seconds"] is None else f"{row['seconds'] / 60:.1f} min"
        lines.append(
            "| {name} | {steps:,} | {level:g} ({of}) | {mean:.1f} [{low:.1f}, {high:.1f}] | {worst:.1f} "
            "| {reached} of {count} | {verdict} | {time} | `{command}` |".format(
                **row | row["interval"] | {"count": len(row["values"]), "time": time}
            )
        )
    lines.append("")
    lines += [
        "- {name}: {level:g}, {source}. Ours: {episodes} episodes per seed, actions {policy}.".format(
            **row | {"policy": "at the mode" if row["policy"] == "mode" else "sampled"}
        )
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def run(levels: Sequence[Level], folder: pathlib.Path, overrides: Sequence[str], *, smoke: bool = False) -> list[dict]:
    """Runs what is missing of `levels`; writes the table of all finished ones to folder. Returns its rows."""
    for level in levels:
        check_same("control.ppo", argument(level, smoke), folder / level.word, overrides, free=FREE)
    for level in levels:
        workdir = folder / level.word
        run_once("control.ppo", argument(level, smoke), workdir, list(overrides), workdir / SPENT, free=FREE)
        cli.write_report([workdir])
    rows = [row_of(level, folder / level.word, smoke=smoke) for level in LEVELS if is_complete(folder / level.word)]
    said = shlex.join(["python", "-m", "experiments.tools.control_levels", *["--smoke"] * smoke, *overrides])
    outcome = {"command": said, "date": datetime.date.today().isoformat(), "rows": rows}
    write_atomically(folder / "levels.json", (json.dumps(outcome, indent=2) + "\n").encode())
    text = table(rows) + f"\n{outcome['date']}: `{said}`\n"
    write_atomically(folder / "levels.md", text.encode())
    print(text)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    known = {level.word: level for level in LEVELS}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help=f"any of {', '.join(known)}; default: all")
    parser.add_argument("--smoke", action="store_true", help="a few updates of two seeds each, to check that it runs")
    parser.add_argument("--workdir", type=pathlib.Path, help="default: runs/control_levels (smoke_control_levels)")
    options, overrides = parser.parse_known_args(arguments)
    wrong = [word for word in options.words if word not in known]
    wrong += [text for text in overrides if not text.startswith("--config.")]
    if wrong:
        parser.error(f"{wrong[0]} is neither one of {', '.join(known)} nor --config.FIELD=VALUE")
    folder = options.workdir or pathlib.Path("runs") / ("smoke_control_levels" if options.smoke else "control_levels")
    run([known[word] for word in options.words] or LEVELS, folder, overrides, smoke=options.smoke)


if __name__ == "__main__":
    main()
