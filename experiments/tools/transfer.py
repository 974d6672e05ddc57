"""What was learned in one domain, measured in all: the matrix of trained-on by tested-on, as in arXiv 2507.17512.

    for n in 2 3 4; do
      python -m experiments.grpo --config=configs/tasks/arithmetic.py --workdir=runs/sums/$n \\
        --config.task.num_operands="($n,$n)" --config.task.unfinished_share=0.0
    done
    python -m experiments.tools.transfer runs/sums/* --output=runs/sums_transfer

Each run is evaluated on the test split of its own task and of every other run's, by experiments.evaluate with the other
run's own command. The runs need the same tokenizer and model. Results are kept in --output; what is there is not
evaluated again, if it is of the same run at the same step by the same command.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.parts.origin import checkpoint_steps
from rl_jax.runs.logging import write_atomically
from rl_jax.runs.run_record import is_complete, read_json

SOURCE = "source.json"  # beside an evaluation: what it was made of


def config_words(command: Sequence[str]) -> list[str]:
    """The words of a command that set its config, each with its value: `--config.name x` becomes --config.name=x."""
    words = []
    for word, after in zip(command, [*command[1:], "--"], strict=True):
        if word.startswith("--config"):
            is_whole = "=" in word or after.startswith("--")  # a Boolean field needs no value
            words.append(word if is_whole else f"{word}={after}")
    return words


def command_of(trained: pathlib.Path, tested: pathlib.Path, folder: pathlib.Path) -> list[str]:
    """The command that evaluates the run `trained` on the task of the run `tested`.

    Raises:
      ValueError: if a run is not complete, or its record has no command with a config.
    """
    for run in (trained, tested):
        if not is_complete(run):
            raise ValueError(f"{run} is not complete: run its command again, or leave it out")
    words = config_words(read_json(tested / "run.json")["command"])
    words = [word for word in words if not word.startswith("--config.init_from=")]
    if not any(word.startswith("--config=") for word in words):
        raise ValueError(f"{tested}/run.json: its command has no --config=FILE")
    program = [sys.executable, "-m", "experiments.evaluate"]
    return [*program, *words, f"--config.init_from={trained}", f"--workdir={folder}"]


def made_of(trained: pathlib.Path, command: Sequence[str]) -> dict[str, Any]:
    """What an evaluation is made of, as JSON: the run by its place and its start, its newest step, and the command."""
    steps, started = checkpoint_steps(trained), read_json(trained / "run.json").get("started")
    return {"run": str(trained.resolve()), "started": started, "step": max(steps, default=None), "command": [*command]}


def evaluate(command: Sequence[str], folder: pathlib.Path, source: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of an evaluation, from `folder` if they are there and of the same source.

    Args:
      command: writes folder/evaluation.json.
      folder: of the evaluation.
      source: of `made_of`.

    Raises:
      RuntimeError: if the command fails; the message ends with its error.
      ValueError: if a file is damaged; names it.
    """
    path, note = folder / "evaluation.json", folder / SOURCE
    if not path.exists() or not note.exists() or read_json(note) != source:
        note.unlink(missing_ok=True)  # an evaluation of which nothing is known, until the command is done
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if re.match(r"[\w.]+(Error|Exception|Exit)\b", line)]
            raise RuntimeError(f"{' '.join(command)} failed:\n{said[0] if said else done.stderr[-2000:]}")
        write_atomically(note, (json.dumps(source, indent=2) + "\n").encode())
    found = read_json(path)
    if "metrics" not in found:
        raise ValueError(f"{path} has no field 'metrics': remove it, and the same command evaluates again")
    return found["metrics"]


def table(names: Sequence[str], values: Sequence[Sequence[float]], metric: str) -> str:
    """A Markdown table, a row per trained run; the last column is the mean over the other runs' tasks."""
    lines = [f"| {metric}, trained on | " + " | ".join(names) + " | mean of the others |"]
    lines.append("|---" * (len(names) + 2) + "|")
    for place, (name, row) in enumerate(zip(names, values, strict=True)):
        others = [value for column, value in enumerate(row) if column != place]
        mean = f"{sum(others) / len(others):.3f}" if others else "-"
        lines.append(f"| {name} | " + " | ".join(f"{value:.3f}" for value in row) + f" | {mean} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=pathlib.Path, help="workdirs of complete runs")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="folder of evaluations and transfer.json")
    parser.add_argument("--metric", default="eval/pass@1", help="of the evaluation")
    options = parser.parse_args(arguments)
    names = [run.name for run in options.runs]
    try:
        if len(set(names)) < len(names):
            raise ValueError(f"the runs need different names, got {', '.join(names)}")
        values = []
        for trained in options.runs:
            folders = [options.output / f"{trained.name}_on_{tested.name}" for tested in options.runs]
            commands = [command_of(trained, tested, f) for tested, f in zip(options.runs, folders, strict=True)]
            found = [evaluate(c, folder, made_of(trained, c)) for c, folder in zip(commands, folders, strict=True)]
            pairs = zip(folders, found, strict=True)
            if missing := [str(folder) for folder, metrics in pairs if options.metric not in metrics]:
                raise ValueError(f"no {options.metric} in {', '.join(missing)}: name another with --metric")
            values.append([metrics[options.metric] for metrics in found])
        options.output.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"runs": names, options.metric: values}, indent=1)
        write_atomically(options.output / "transfer.json", text.encode())
        print(table(names, values, options.metric))
    except (ValueError, OSError, RuntimeError) as error:
        print(f"experiments.tools.transfer: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
