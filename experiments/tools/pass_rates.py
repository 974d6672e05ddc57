"""How often a run's recorded episodes solve each prompt: the flags of tools that only hard prompts get (UR2).

    python -m experiments.agents --config=configs/agents_papers.py:ur2,alone --workdir=runs/alone
    python -m experiments.tools.pass_rates runs/alone
    python -m experiments.agents --config=configs/agents_papers.py:ur2 --config.task.rates=runs/alone/pass_rates.json

Writes RUN/pass_rates.json: one {"prompt", "info", "rate", "episodes"} for each prompt of the run's training split that
was played, in its order. Episodes whose environment failed do not count.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence

from experiments.parts.setup import load_task
from experiments.parts.stored import read_config
from rl_jax.data.readers import DataError
from rl_jax.experience.prompt import prompt_id
from rl_jax.experience.trajectory import Trajectory
from rl_jax.preferences.episodes import groups
from rl_jax.runs.logging import write_atomically

NAME = "pass_rates.json"


def measured(episodes: Iterable[Trajectory]) -> dict[str, tuple[float, int]]:
    """prompt's id -> (share of its episodes with `correct` 1 or more, their number)."""
    found: dict[str, list[float]] = {}
    for one in episodes:
        right = sum(turn.numbers.get("correct", 0.0) for turn in one.turns) >= 1
        found.setdefault(one.prompt_id, []).append(float(right))
    return {name: (sum(right) / len(right), len(right)) for name, right in found.items()}


def rows(records: Iterable[Mapping], rates: Mapping[str, tuple[float, int]]) -> list[dict]:
    """What is written: the different prompts among `records` that have a rate."""
    found = {}
    for record in records:
        name = prompt_id(record)
        if name in rates and name not in found:
            rate, number = rates[name]
            info = json.loads(record["info"])
            found[name] = {"prompt": record["prompt"], "info": info, "rate": rate, "episodes": number}
    return list(found.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path, help="workdir of experiments.agents with agent.record=true")
    run = parser.parse_args(arguments).run
    try:
        source = load_task(read_config(run)).data_source("train")
        found = rows((source[i] for i in range(len(source))), measured(one for group in groups(run) for one in group))
    except (DataError, FileNotFoundError, ValueError) as error:
        print(f"experiments.tools.pass_rates: {error}", file=sys.stderr)
        return 2
    write_atomically(run / NAME, (json.dumps(found, indent=1) + "\n").encode())
    mean = sum(row["rate"] for row in found) / max(len(found), 1)
    print(f"{run / NAME}: {len(found)} prompts, mean pass rate {mean:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
