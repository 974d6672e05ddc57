"""Held-out evaluation: sample completions for test prompts, score them with the task's verifier.

    python -m experiments.evaluate --config=configs/tasks/arithmetic.py --config.init_from=runs/arithmetic
"""

import json
import pathlib

from experiments.parts import flags
from experiments.parts.judging import need_reward
from experiments.parts.play_groups import make_any_evaluate
from experiments.parts.preference_data import with_data
from experiments.parts.prompt_limits import say_skipped
from experiments.parts.rewards import make_rewards
from experiments.parts.setup import Setup, fix_date, load_params, make_setup
from rl_jax.runs import disk
from rl_jax.runs.logging import write_atomically
from rl_jax.tasks import Task
from rl_jax.training import distributed

# Counts of a task's report: records that task.max_prompt_bytes or task.max_completion_bytes leaves out.
TOO_LONG = ("num_too_long", "num_test_too_long", "num_all_too_long")


def need_params(config) -> None:
    """Raises ValueError if the config names no trained params: the rewards of random ones would look like a result."""
    if not (config.init_from or config.model.path or config.model.checkpoint):
        raise ValueError(
            "init_from is empty: nothing trained is named. Give --config.init_from=RUN (a workdir, or "
            "RUN/checkpoints/STEP), or a model, --config.model.path=FOLDER"
        )


def left_out(setup: Setup) -> dict[str, int]:
    """How many records the task left out as too long or bad (of all splits), and how many are over eval.num_prompts."""
    if "agent" in setup.config:
        return {}
    source = setup.task.data_source("test")
    found = {name: count for name, count in getattr(source, "report", {}).items() if name in TOO_LONG}
    found["num_skipped"] = say_skipped(setup.config, source)
    found["eval.num_prompts"] = len(source) - setup.config.eval.num_prompts
    return {name: int(count) for name, count in found.items() if count > 0}


def run(config, workdir: pathlib.Path, *, task: Task | None = None) -> dict[str, float]:
    """Evaluates config.init_from, or config.model, and writes WORKDIR/evaluation.json. task: replaces config.task."""
    setup = with_data(make_setup(config, task))
    need_reward(setup)
    need_params(config)
    if distributed.is_main():  # no lock: it may be the folder of a run, which may go on
        disk.try_folder(workdir)
    fix_date(setup, config.init_from or workdir)
    params = load_params(setup, config.init_from) if config.init_from else setup.init_params()
    with make_rewards(setup) as rewards:
        metrics, rows = make_any_evaluate(setup, rewards)(params)
    missing = left_out(setup)
    if distributed.is_main():
        for name, value in sorted(metrics.items()):
            print(f"{name:28} {value:.4f}")
        for reason, count in missing.items():
            print(f"left out, {reason}: {count}", flush=True)
        text = json.dumps({"metrics": metrics, "left_out": missing, "samples": rows}, indent=2)
        write_atomically(workdir / "evaluation.json", text.encode())
    return metrics


if __name__ == "__main__":
    flags.main(run, several_processes=True)
