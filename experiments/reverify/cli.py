"""Recomputes the rewards of a run's stored samples and lists what changed.

    python -m experiments.reverify runs/arithmetic
    python -m experiments.reverify runs/arithmetic --reward=math       # what another reward would have said

After a verifier was changed: does it still say what it said, on the answers that models really gave? Reads
RUN/config.json and RUN/samples.jsonl. Group terms are recomputed for whole groups only. What judges, or
episodes of experiments.agents, paid cannot be recomputed from a text: such a run needs --reward. Exits with 1 if a
reward changed, with 2 if nothing could be compared.
"""

import argparse
import pathlib
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from configs import common
from experiments.parts import refusals
from experiments.parts.recorded import groups, score_answers
from experiments.parts.reward_spec import parse_terms
from experiments.parts.rewards import Rewards, with_task
from experiments.parts.setup import load_task, with_reward_function
from experiments.parts.stored import read_config
from rl_jax.core.binding import resolve
from rl_jax.data.readers import BadRecords, read_objects
from rl_jax.rewards.output import shown
from rl_jax.rewards.terms import load_terms
from rl_jax.runs.logging import SAMPLES_FILE

TOLERANCE = 1e-6  # rewards are float32


def read_samples(run: pathlib.Path) -> list[dict[str, Any]]:
    """The rows of samples.jsonl.

    Raises:
      ValueError: if the file is missing or empty, or its rows have no `info` (runs of older versions).
    """
    path = run / SAMPLES_FILE
    if not path.is_file():
        raise ValueError(f"{path} is missing: give the folder of a run of grpo or ppo with log.sample_rows above 0")
    rows = [row for _, row in read_objects(path, BadRecords())]
    if not rows or any("info" not in row for row in rows):
        raise ValueError(f"{path} has no samples with their `info`: it was written by an older version")
    return rows


def make_scorer(config: ConfigDict, reward: str) -> tuple[Rewards, bool]:
    """(the reward of a run's config, or the terms given; whether it has group terms).

    Raises:
      ValueError: if no terms are given, and judges or an environment gave the run's rewards.
    """
    for group, giver in (("judge", "judges"), ("agent", "an environment")):
        if config.get(group) and not reward:
            raise ValueError(
                f"{giver} gave the rewards of this run (config.{group}), which cannot be recomputed from its samples: "
                "give terms to compare with, --reward=math"
            )
    settings = common.base("").reward  # older runs lack some fields
    settings.update(config.reward)
    if reward:
        settings.terms, settings.compose = ConfigDict(parse_terms(reward)), ConfigDict(dict(fn="weighted_sum"))
    spec, task = settings.terms.to_dict(), None
    if not spec or any(fields["fn"] == "task" for fields in spec.values()):
        task = with_reward_function(load_task(config), settings.function)
    terms = load_terms(with_task(spec, task) if task else spec, resolve)
    return Rewards(settings, terms, task), any(term.is_group for term in terms)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.reverify", description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=pathlib.Path, help="folder of a run")
    parser.add_argument("--reward", default="", help="other terms, as in experiments.score")
    parser.add_argument("--show", type=int, default=10, help="how many of the changed rows to print")
    options = parser.parse_args(argv)
    console = Console(markup=False)
    try:
        config = read_config(options.run)
        rows = read_samples(options.run)
        scorer, has_groups = make_scorer(config, options.reward)
    except (ValueError, OSError) as error:
        refusals.refuse("experiments.reverify", refusals.said(error))

    def same(row):
        return row["step"], row["split"], row["prompt"]

    if has_groups:
        size = {"train": config.sample.group_size, "eval": config.eval.samples_per_prompt}
        whole = [place for part in groups(rows, same) if len(part) == size[rows[part[0]]["split"]] for place in part]
        console.print(f"{len(rows) - len(whole)} of {len(rows)} samples left out: their groups are not complete")
        rows = [rows[place] for place in whole]
        if not rows:
            text = "nothing to compare: no group is complete; train with log.sample_rows of a whole group or more"
            refusals.refuse("experiments.reverify", text)
    with scorer as rewards:
        result = score_answers(rewards, rows, same)
    stored = np.array([row["reward"] for row in rows])
    changed = np.flatnonzero(np.abs(result.rewards - stored) > TOLERANCE)
    for i in changed[: options.show]:
        row = rows[i]
        console.print(f"step {row['step']} {row['split']}: {row['reward']:.4g} -> {result.rewards[i]:.4g}")
        console.print(f"  prompt {row['prompt']!r:.200}\n  completion {row['completion']!r:.200}")
    if result.first_error:
        first = shown(result.first_error, 400)
        console.print(f"{result.num_timeouts} timed out, {result.num_errors} failed. The first: {first}", markup=False)
    console.print(f"{len(changed)} of {len(rows)} rewards changed")
    return int(len(changed) > 0)
