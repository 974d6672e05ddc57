"""Agents with a calculator compared with TRL's `environment_factory` and Tunix's agentic learner: one JSON line.

    python -m experiments.bench.agents_peers --peer trl=PYTHON --peer tunix=PYTHON --rounds=2  # PYTHON: one that has it

Ours is experiments.agents with configs/agents.py:calculator. Every side begins with the same weights, those of the
config's warm start (a random model never calls a tool), reads the same tokens, goes once through the same problems and
has the same limits: 16 problems x 8 episodes a step, 3 turns of 8 tokens, 24 tokens after the prompt; temperature 1,
leave-one-out advantages (TRL: less the group's mean, which is 7/8 of it), the mean over tokens, no reference model, and
one float32 AdamW update at a constant rate.

`step_s` is the median time from update to update after --warmup steps, over the rounds, in which the sides take turns;
`cpu_s` the processor seconds. `ratio`: the peer's over ours. `solved`, `calls` and `tokens` are means over a step's
episodes, as sampled: of the first step and of the last five; `tokens` those that the model sampled.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import sys
import tempfile
from typing import Any
from unittest import mock

import jax

from configs import agents as agents_config
from experiments import agents, sft
from experiments.bench.grpo import named_peers, run_apart
from experiments.bench.peers import calculator_game
from experiments.export.cli import write_folder
from experiments.parts import processes
from rl_jax import tasks
from rl_jax.runs.logging import read_jsonl
from rl_jax.tasks import calculator
from rl_jax.tokenizers import CharTokenizer
from rl_jax.training import compilation

SCRIPTS = {name: pathlib.Path(__file__).parent / "peers" / f"{name}_agents.py" for name in ("trl", "tunix")}
SIZES = ("embed_dim", "num_layers", "num_heads", "num_kv_heads", "head_dim", "mlp_dim")
SIZES += ("tied_head", "rope_theta", "norm_eps")
LAST = 5  # steps at the end whose episodes are counted


def make_start(folder: pathlib.Path) -> None:
    """The warm start of every side: folder/run, and folder/model for `transformers`. What is there already stays."""
    if not (folder / "model").exists():
        config = agents_config.get_config("calculator")
        config.log.update(progress=False, tensorboard=False)
        sft.run(config.lock(), folder / "run")
        write_folder(folder / "run", folder / "model")


def problems_of(config, number: int) -> list[list[str]]:
    """The first problems that the config trains on: [prompt, answer] each."""
    source = tasks.load(**config.task.to_dict()).data_source("train")
    records = [source[index] for index in range(number)]
    return [[record["prompt"], str(json.loads(record["info"])["answer"])] for record in records]


def make_work(config, problems: list[list[str]], folder: pathlib.Path, *, steps: int, seed: int = 0) -> dict[str, Any]:
    """The work of every side, of JSON values.

    Args:
      config: configs/agents.py:calculator.
      problems: [prompt, answer] each, of make_start's task.
      folder: of make_start.
      steps: number of steps.
      seed: of what is sampled.

    Raises:
      ValueError: if the problems are not those of `steps` steps.
    """
    prompts = config.sample.prompts_per_step
    if len(problems) != steps * prompts:
        raise ValueError(f"{steps} steps of {prompts} need {steps * prompts} problems, not {len(problems)}")
    return {
        "sizes": {name: config.model[name] for name in SIZES}, "alphabet": calculator.ALPHABET,
        "run": str(folder / "run"), "model": str(folder / "model"),
        "steps": steps, "prompts_per_step": prompts, "group_size": config.sample.group_size,
        "turns": config.agent.max_turns, "turn_tokens": config.agent.max_turn_tokens,
        "prompt": max(config.rollout.prompt_buckets), "row": config.rollout.completion_length,
        "price": config.agent.env.price, "rate": config.train.optimizer.learning_rate, "seed": seed,
        "problems": problems,
    }  # fmt: skip


def config_of(work: dict[str, Any]):
    """The config of our side."""
    config = agents_config.get_config("calculator")
    config.update(init_from=work["run"], seed=work["seed"])
    config.algorithm.measure_kl = False  # the peers have no reference model here
    config.train.steps = config.checkpoint.every = work["steps"]
    config.train.optimizer.warmup_steps = 0
    config.sample.update(prompts_per_step=work["prompts_per_step"], group_size=work["group_size"])
    config.eval.update(every=0, num_prompts=4, batch_size=4)
    config.reward.num_workers = 0
    config.log.update(progress=False, tensorboard=False)
    return config.lock()


def task_of(work: dict[str, Any]) -> tasks.Task:
    """The work's problems as a task."""
    records = [
        {"prompt": prompt.encode(), "completion": b"", "info": json.dumps({"answer": int(answer)}).encode()}
        for prompt, answer in work["problems"]
    ]
    sources = {
        split: tasks.RecordSource(records, name="calculator", split=split, report={}) for split in ("train", "test")
    }
    return tasks.Task("calculator", CharTokenizer(work["alphabet"]), sources.__getitem__, None)


def run_ours(work: dict[str, Any]) -> dict[str, Any]:
    """Seconds from update to update of our side, and what its episodes were."""
    counts, update = calculator_game.Counts(work["steps"], 1), agents.update

    def timed_update(*arguments):
        result = jax.block_until_ready(update(*arguments))
        counts.updated()
        return result

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rl_jax-agents-"))
        stack.enter_context(mock.patch.object(agents, "update", timed_update))
        agents.run(config_of(work), pathlib.Path(folder) / "run", task=task_of(work))
        rows = [row for row in read_jsonl(pathlib.Path(folder) / "run/metrics.jsonl") if "episode/correct" in row]
    for step, row in enumerate(rows):
        found = dict(solved=row["episode/correct"], calls=row["episode/calls"], tokens=row["completion_length"])
        counts.add(step, **found)
    return counts.result("ours")


def measure(work: dict[str, Any], peers: dict[str, str], *, rounds: int, warmup: int) -> dict[str, Any]:
    """Each side's median step and what its episodes were, and the peers' step over ours.

    Args:
      work: of make_work.
      peers: name -> Python.
      rounds: how often each side runs.
      warmup: first steps of a run whose time does not count.
    """
    commands = {"ours": [sys.executable, "-m", "experiments.bench.agents_peers", "--work"]}
    commands |= {name: [python, str(SCRIPTS[name])] for name, python in peers.items()}
    runs: dict[str, list[dict]] = {name: [] for name in commands}
    for number in range(rounds):
        for side, command in commands.items():
            runs[side].append(run_apart(side, command, work | {"seed": work["seed"] + number}))
    sides = {side: summary(of, warmup) for side, of in runs.items()}
    ratio = {
        side: {name: round(of[name] / sides["ours"][name], 2) for name in ("step_s", "cpu_s")}
        for side, of in sides.items()
        if side != "ours"
    }
    return {"sides": sides, "ratio": ratio}


def summary(runs: list[dict[str, Any]], warmup: int) -> dict[str, Any]:
    """One side's figures over its rounds. warmup: as in measure; the first difference is of the second step."""
    seconds = {
        name: round(statistics.median(value for run in runs for value in run[name][warmup - 1 :]), 4)
        for name in ("step_s", "cpu_s")
    }
    means = {
        name: [
            round(statistics.fmean(run[name][0] for run in runs), 3),
            round(statistics.fmean(value for run in runs for value in run[name][-LAST:]), 3),
        ]
        for name in ("solved", "calls", "tokens")
    }
    return seconds | means


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", default=[], help="NAME=PYTHON, NAME one of trl, tunix")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--start", default="", help="folder of the warm start, made if it is not there")
    parser.add_argument("--work", help=argparse.SUPPRESS)  # run this work and print ours
    options = parser.parse_args(arguments)
    if not options.work and not 1 <= options.warmup < options.steps:
        parser.error(f"--warmup={options.warmup} must be 1 or more, and less than --steps={options.steps}")
    if not jax.config.jax_compilation_cache_dir:
        compilation.use_cache("~/.cache/rl_jax/xla")
    if options.work:
        processes.keep_memory()  # as the programs do
        print(json.dumps(run_ours(json.loads(pathlib.Path(options.work).read_text()))))
        return
    peers, config = named_peers(parser, options.peer, SCRIPTS), agents_config.get_config("calculator")
    with tempfile.TemporaryDirectory(prefix="rl_jax-agents-") as name:
        folder = pathlib.Path(options.start or name).absolute()
        make_start(folder)
        problems = problems_of(config, options.steps * config.sample.prompts_per_step)
        work = make_work(config, problems, folder, steps=options.steps)
        found = measure(work, peers, rounds=options.rounds, warmup=options.warmup)
    print(json.dumps({"bench": "agents_peers", "options": vars(options), **found}))


if __name__ == "__main__":
    main()
