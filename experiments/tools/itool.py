"""iTool's loop: SFT from easy to hard, then hard prompts, tree search, SimPO on its pairs, and again (2501.09766).

    python -m experiments.tools.itool --workdir=runs/itool --iterations=3
    python -m experiments.tools.itool --workdir=runs/itool --smoke        # the smallest sizes

The stages are configs/preferences/itool.py:warm, play and dpo; each starts from the one before it. WORKDIR has a folder
per stage, warm, play_1, dpo_1, play_2, ..., the chosen prompts of each iteration, hard_1.json, and itool.json: what
each iteration chose and found, and the share of held-out questions that were answered before it and after the last one.
The same command goes on where it stopped; stages of other settings are refused.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

from configs.preferences import itool
from experiments import agents, dpo, evaluate, sft
from experiments.parts import origin, perplexities, players, stops
from experiments.parts.setup import load_params, load_task, make_setup
from rl_jax.experience.episodes import probing
from rl_jax.experience.prompt import prompt_id
from rl_jax.preferences import episodes
from rl_jax.runs.logging import write_atomically
from rl_jax.runs.run_record import is_complete, read_json
from rl_jax.selection.hardest import hardest
from rl_jax.training.checkpoint import StopSignal

WORDS = {True: "smoke,", False: ""}


class Records(list):
    """Records in memory, as a task's split."""

    num_skipped = 0

    def __repr__(self) -> str:
        return f"Records({len(self)})"


def different(source: Sequence[dict]) -> Records:
    """The different prompts of a split, in its order."""
    found = {}
    for index in range(len(source)):
        found.setdefault(prompt_id(source[index]), source[index])
    return Records(found.values())


def choose(start: pathlib.Path, smoke: bool) -> tuple[list[dict], dict[str, float]]:
    """(the hard prompts for the weights of a finished run, the mean perplexity of all and of these)."""
    config = itool.get_config(WORDS[smoke] + "play")
    setup = make_setup(config)
    records = different(setup.task.data_source("train"))
    with probing(players.environment_of(config)()) as env:
        values = perplexities.of_known_answers(setup, load_params(setup, start), records, env)
    chosen = hardest(values, [has_calls(record) for record in records], ratio=itool.RATIO)
    found = dict(prompts=len(records), perplexity=float(np.mean(values)))
    return [records[i] for i in chosen], found | dict(hard=len(chosen), hard_perplexity=float(np.mean(values[chosen])))


def has_calls(record: dict) -> bool:
    """Whether the known answer calls a tool."""
    return json.loads(record["info"])["calls"] > 0


def stage(name: str, run, folder: pathlib.Path, start: pathlib.Path | None, smoke: bool, **more) -> bool:
    """Runs a program on its stage's config, unless it is complete or a signal has come.

    Returns whether it is complete now.

    Args:
      name: of configs/preferences/itool.py.
      run: of the program.
      folder: of the stage.
      start: the run whose weights it begins with; None: the model's own.
      smoke: the smallest sizes.
      more: `prompts`, the records of its training split, or fields of config.data.

    Raises:
      ChangedError: if it is complete with other settings; names the fields.
    """
    config, given = itool.get_config(WORDS[smoke] + name), {}
    config.init_from = str(start or "")
    if (prompts := more.pop("prompts", None)) is not None:
        task = load_task(config)
        splits = {"train": Records(prompts)}
        given["task"] = task._replace(data_source=lambda split: splits.get(split) or task.data_source(split))
        config.sample.prompts = dict(fn="ordered")
        config.train.steps = -(-len(prompts) // config.sample.prompts_per_step)  # each once
    for field, value in more.items():
        config.data[field] = value
    if is_complete(folder):
        origin.check_result(config, folder, config.program)
    elif not stops.shared().received:
        run(config, folder, **given)
    return is_complete(folder)


def solved(run: pathlib.Path, folder: pathlib.Path, smoke: bool) -> float:
    """The share of held-out questions that a finished run's weights answer. folder: of the evaluation."""
    config = itool.get_config(WORDS[smoke] + "play")
    config.init_from = str(run)
    return float(evaluate.run(config, folder)["eval/pass@1"])


def loop(workdir: pathlib.Path, iterations: int, smoke: bool) -> tuple[list[dict[str, float]], bool]:
    """The warm-up and all iterations. Returns (a report of each, and of the end; whether no signal ended them).

    Raises:
      DataError: if a search gives no pair.
      ChangedError: if a stage, or the choice of its prompts, is there with other settings.
    """
    report, start = [], workdir / "warm"
    if not stage("warm", sft.run, start, None, smoke):
        return report, False
    for number in range(1, iterations + 1):
        played, file, aligned = (workdir / f"{name}_{number}" for name in ("play", "hard", "dpo"))
        file = file.with_suffix(".json")
        settings = itool.get_config(WORDS[smoke] + "play").to_dict()
        settings |= {"init_from": str(start), "ratio": itool.RATIO}
        if stops.shared().received:
            return report, False
        if not file.exists():
            prompts, found = choose(start, smoke)
            found["solved"] = solved(start, workdir / f"eval_{number}", smoke)
            write_atomically(file, json.dumps(origin.kept(settings) | {"found": found, "prompts": prompts}).encode())
        told = read_json(file)
        origin.check_kept(settings, told, file)
        if not stage("play", agents.run, played, start, smoke, prompts=told["prompts"]):
            return report, False
        data = dict(path=str(played), data_dir=str(workdir / "data"))
        if not stage("dpo", dpo.run, aligned, played, smoke, **data):
            return report, False
        start = aligned
        report.append(told["found"] | {"pairs": number_of_pairs(played, smoke)})
        write_atomically(workdir / "itool.json", (json.dumps(report, indent=2) + "\n").encode())
    if stops.shared().received:
        return report, False
    report.append({"solved": solved(start, workdir / "eval_last", smoke)})
    write_atomically(workdir / "itool.json", (json.dumps(report, indent=2) + "\n").encode())
    return report, True


def number_of_pairs(played: pathlib.Path, smoke: bool) -> int:
    """How many pairs a search gave."""
    fields = itool.get_config(WORDS[smoke] + "dpo").data
    made = (episodes.pairs_by_judgement(group, fields.gap, fields.least) for group in episodes.groups(played))
    return sum(map(len, made))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=pathlib.Path, required=True, help="folder of all stages")
    parser.add_argument("--iterations", type=int, default=3, help="how often search and DPO follow each other")
    parser.add_argument("--smoke", action="store_true", help="the smallest sizes")
    options = parser.parse_args(arguments)
    try:
        if options.iterations < 1:
            raise ValueError(f"--iterations={options.iterations} must be 1 or more")
        with stops.sharing(StopSignal()):
            report, complete = loop(options.workdir, options.iterations, options.smoke)
    except (ValueError, OSError) as error:
        print(f"experiments.tools.itool: {error}", file=sys.stderr)
        return 2
    for number, found in enumerate(report, 1):
        print(f"iteration {number}: " + ", ".join(f"{name} {value:.3g}" for name, value in found.items()))
    return 0 if complete else stops.STOPPED


if __name__ == "__main__":
    sys.exit(main())
