"""The data of WebRL's outcome model, and what the model is worth: episodes with the environment's word. 2411.02337.

    python -m experiments.tools.outcomes play --run=runs/webrl_start --out=runs/webrl_outcomes
    python -m experiments.sft --config=configs/preferences/outcome_model.py --workdir=runs/webrl_outcome_model
    python -m experiments.tools.outcomes check --model=runs/webrl_outcome_model --data=runs/webrl_outcomes/test.jsonl

play: the policies of --run (each a finished run with config.agent; --run may be given several times) play training
tasks of their environment, and new ones: a share --augmented has another instruction on the same pages, made of the
words of two. OUT/train.jsonl and OUT/test.jsonl have a line per episode: instruction, actions, page (the newest one),
right (the environment's word), and prompt and completion, the question with YES or NO (rl_jax.preferences.outcomes).
Held-out tasks have pages of their own; a question that training episodes ask, too, is not held out.
check: accuracy, precision and recall of the model's word on such a file, and the accuracy of always saying the same.
"""

import argparse
import contextlib
import json
import pathlib
import random
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from experiments.parts.evolving_tasks import environment_of
from experiments.parts.outcome_model import make_reader
from experiments.parts.players import Player
from experiments.parts.setup import load_params, make_setup
from experiments.parts.stored import read_config
from rl_jax.data.readers import DataError
from rl_jax.experience.episodes import probing
from rl_jax.experience.prompt import prompt_id
from rl_jax.preferences import outcomes
from rl_jax.preferences.sources import prompt_share
from rl_jax.runs.logging import write_atomically
from rl_jax.selection import evolving

TRIES = 20  # at a new instruction on the same pages


def drawn_tasks(source: Any, env: Any, count: int, augmented: float, dice: random.Random) -> list[tuple[dict, str]]:
    """(record, id of the training task whose pages it has) of `count` tasks; a share has another instruction.

    Args:
      source: records of the training split.
      env: with `instruction` and `instructed`.
      count: how many tasks; a training task comes again only if there are fewer.
      augmented: the share.
      dice: of all that is random.
    """
    order = [i for _ in range(-(-count // len(source))) for i in dice.sample(range(len(source)), len(source))]
    found = []
    for place, index in enumerate(order[:count]):
        record, made = source[index], None
        for _ in range(TRIES if place < round(augmented * count) else 0):
            texts = [env.instruction(one) for one in (record, source[dice.choice(order)])]
            made = env.instructed(record, evolving.similar_words(texts, dice))
            if made and made["prompt"] != record["prompt"]:
                break
        found.append((dict(made or record), prompt_id(record)))
    return found


def played(run: pathlib.Path, tasks: int, samples: int, augmented: float, seed: int) -> list[tuple[dict, str]]:
    """(a line of outcomes.record, the training task's id) of each episode of a run's newest policy.

    Raises:
      ValueError: if the run plays no episodes, or its environment cannot say what was asked.
    """
    config = read_config(run)
    if "agent" not in config:
        raise ValueError(f"--run={run} plays no episodes: it has no config.agent")
    setup, env, dice = make_setup(config), environment_of(config), random.Random(seed)
    if missing := [name for name in ("instruction", "instructed") if not hasattr(env, name)]:
        raise ValueError(f"--run={run}: agent.env={config.agent.env.fn!r} has no {' and no '.join(missing)}()")
    asked = drawn_tasks(setup.task.data_source("train"), env, tasks, augmented, dice)
    size = max(1, config.sample.prompts_per_step * config.sample.group_size // samples)
    params, rows = load_params(setup, run), []
    with probing(env), contextlib.closing(Player(setup, size * samples)) as player:
        for start in range(0, len(asked), size):
            part = asked[start : start + size]
            key = jax.random.fold_in(jax.random.key(seed), start)
            episodes = player.play(params, [record for record, _ in part], key, group_size=samples)
            for one in episodes:
                if one.status != "error":
                    record, origin = part[one.group]
                    seen = outcomes.seen_of(one, env.instruction(record), setup.task.tokenizer.decode)
                    rows.append((outcomes.record(seen, one.reward > outcomes.RIGHT, run=str(run)), origin))
    return rows


def play(options: argparse.Namespace) -> int:
    """Writes OUT/train.jsonl and OUT/test.jsonl."""
    if options.tasks < 1 or options.samples < 1 or not 0 <= options.augmented <= 1 or not 0 < options.held_out < 1:
        raise ValueError(
            f"--tasks={options.tasks} and --samples={options.samples} must be 1 or more, --augmented="
            f"{options.augmented} in [0, 1] and --held_out={options.held_out} between 0 and 1"
        )
    rows = [
        row
        for number, run in enumerate(options.run)
        for row in played(run, options.tasks, options.samples, options.augmented, options.seed + number)
    ]
    held_out = [prompt_share(origin) < options.held_out for _, origin in rows]
    splits = outcomes.split([row for row, _ in rows], held_out)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, found in splits.items():
        if not found:
            raise ValueError(f"{options.out}/{name}.jsonl would be empty: play more --tasks, or change --held_out")
        write_atomically(options.out / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in found).encode())
        right = np.mean([row["right"] for row in found])
        print(f"{options.out / name}.jsonl: {len(found)} episodes, {right:.3f} of them right")
    return 0


def check(options: argparse.Namespace) -> int:
    """Prints what a model's word is worth."""
    rows = outcomes.read(options.data)
    setup = make_setup(read_config(options.model))
    params = load_params(setup, options.model)
    read = make_reader(setup, setup.merged(params) if setup.merged else params)
    said = outcomes.verdicts(read([row["prompt"] for row in rows]))
    right = np.array([row["right"] for row in rows], bool)
    found = outcomes.agreement(said, right) | {"same_word": float(max(right.mean(), 1 - right.mean()))}
    print(", ".join(f"{name} {value:.3f}" for name, value in found.items()) + f" ({len(rows)} episodes)")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="what", required=True)
    plays = parts.add_parser("play", help="episodes with the environment's word")
    plays.add_argument("--run", type=pathlib.Path, action="append", required=True, help="workdir of a policy's run")
    plays.add_argument("--out", type=pathlib.Path, required=True, help="folder of train.jsonl and test.jsonl")
    plays.add_argument("--tasks", type=int, default=2_000, help="that each policy plays")
    plays.add_argument("--samples", type=int, default=4, help="episodes of each")
    plays.add_argument("--augmented", type=float, default=0.5, help="share of tasks with another instruction")
    plays.add_argument("--held_out", type=float, default=0.1, help="share of training tasks in test.jsonl")
    plays.add_argument("--seed", type=int, default=0)
    checks = parts.add_parser("check", help="what a model's word is worth")
    checks.add_argument("--model", type=pathlib.Path, required=True, help="workdir of experiments.sft")
    checks.add_argument("--data", type=pathlib.Path, required=True, help="a file of `play`")
    options = parser.parse_args(arguments)
    try:
        return {"play": play, "check": check}[options.what](options)
    except (DataError, FileNotFoundError, ValueError) as error:
        print(f"experiments.tools.outcomes: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
