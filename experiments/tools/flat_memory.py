"""Whether a loop's memory stays flat: a program at its smallest size for many steps, with its counts over time.

    python -m experiments.tools.flat_memory grpo                      # 2,000 steps; also ppo, agents, dpo, sft, ...
    python -m experiments.tools.flat_memory control.ppo --steps=500 --every=10

After every so many steps it reads this process's resident memory, open file descriptors and threads, the programs that
jax has compiled (or read from its cache), and the live arrays of jax. Over the second half of the run the memory may
grow by --tolerance MiB per 1,000 steps (least squares), and no count may at all: the least of the last quarter is
compared with the least of the one before. The last line is JSON; the exit code is 1 if something grows. The first half
is not judged: buffers and queues fill up, and each stage compiles once. A run that a signal ends (timeout 300 python
...) is judged as far as it came.
"""

import argparse
import gc
import importlib
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.parts import run as run_part
from rl_jax.training.compilation import COMPILED

# Program -> (the module of its smallest config, its words).
PROGRAMS = {
    "grpo": ("configs.tasks.arithmetic", "smoke"),
    "ppo": ("configs.tasks.arithmetic_ppo", "smoke"),
    "agents": ("configs.agents", "smoke"),
    "dpo": ("configs.preferences.given", "smoke"),
    "online_dpo": ("configs.preferences.online", "smoke"),
    "sft": ("configs.tasks.arithmetic", "smoke"),
    "reward_model": ("configs.preferences.reward_models", "smoke,scratch"),
    "control.ppo": ("configs.control.environments", "matching,smoke"),
    "control.replay": ("configs.control.replay", "matching,smoke"),
    "control.preferences": ("configs.control.preferences", "reward,matching,smoke"),
}
STEPS_OF = {"sft": "sft"}  # the group whose `steps` a program takes, if it is not "train"
COUNTS = ("descriptors", "threads", "programs", "arrays")
MIB = 2**20


class Reading(NamedTuple):
    """What was read after one step.

    Attributes:
      step: number of the step.
      rss_mib: resident memory, in MiB.
      descriptors: open files.
      threads: of this process.
      programs: compiled since the beginning, or read from the cache of compiled ones.
      arrays: live arrays of jax.
    """

    step: int
    rss_mib: float
    descriptors: int
    threads: int
    programs: int
    arrays: int


class Watch:
    """Reads after every so many ended steps of whatever loop runs inside `with`.

    Args:
      every: steps between two readings.

    Attributes:
      readings: list of Reading.
    """

    def __init__(self, every: int):
        self._every, self._compiled, self.readings = every, 0, []

    def __enter__(self) -> "Watch":
        jax.monitoring.register_event_duration_secs_listener(self._count)
        self._end, watch = run_part.Step.end, self

        def end(step, *args, **kwargs):  # the loops need not know that they are watched
            watch._end(step, *args, **kwargs)
            if step.number % watch._every == 0 and not step.saves:  # a checkpoint is written in the background
                watch.readings.append(watch.read(step.number))

        run_part.Step.end = end
        return self

    def __exit__(self, *error) -> None:
        run_part.Step.end = self._end
        jax.monitoring.unregister_event_duration_listener(self._count)

    def read(self, step: int) -> Reading:
        """A reading now, after a collection of garbage."""
        gc.collect()
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
        return Reading(
            step,
            pages * os.sysconf("SC_PAGE_SIZE") / MIB,
            len(os.listdir("/proc/self/fd")),
            len(os.listdir("/proc/self/task")),
            self._compiled,
            len(jax.live_arrays()),
        )

    def _count(self, event: str, duration: float, **_) -> None:
        self._compiled += event == COMPILED


def tiny(program: str, folder: pathlib.Path, steps: int, *, workers: int = 1, saves: int = 4) -> ConfigDict:
    """The smallest config of a program, of so many steps.

    Args:
      program: of PROGRAMS.
      folder: for the prepared data.
      steps: of the loop.
      workers: processes of the verifier.
      saves: evaluations and checkpoints.

    Raises:
      ValueError: if the program is unknown.
    """
    if program not in PROGRAMS:
        raise ValueError(f"program {program!r} is none of {', '.join(PROGRAMS)}")
    module, words = PROGRAMS[program]
    config = importlib.import_module(module).get_config(words)
    config.log.progress = False
    config.checkpoint.every = every = max(steps // saves, 1)
    if program.startswith("control."):
        config.update(num_seeds=1, log_every=1)
        config.sample.update(num_envs=4, num_steps=8)
        config.train.total_steps = steps * config.sample.num_envs * config.sample.num_steps
        return config
    config.model.update(embed_dim=16, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=16, mlp_dim=16)
    for group in ("task", "data"):
        if "data_dir" in config.get(group, {}):
            config[group].data_dir = str(folder / "data")
    if "num_train" in config.get("task", {}):
        config.task.update(num_train=100, num_test=20)  # of tens of thousands, making them is most of a short run
    config.eval.every = every
    config.reward.num_workers = workers
    config.sft.update(steps=0, stop_at=1.1, eval_every=every, batch_size=8)
    config[STEPS_OF.get(program, "train")].steps = steps
    if program in ("grpo", "ppo", "online_dpo"):
        config.rollout.completion_length = 8
    return config


def watch(
    program: str, folder: pathlib.Path, steps: int, *, every: int = 0, workers: int = 1, saves: int = 4
) -> list[Reading]:
    """Runs a program and reads as it goes.

    Args:
      program: of PROGRAMS.
      folder: for data and the run.
      steps: of the loop.
      every: steps between two readings. 0: 40 readings.
      workers: processes of the verifier.
      saves: evaluations and checkpoints.
    """
    config = tiny(program, folder, steps, workers=workers, saves=saves)
    run: Callable = importlib.import_module(f"experiments.{program}").run
    with Watch(every or max(steps // 40, 1)) as found:
        run(config, folder / "run")
    return found.readings


def second_half(readings: list[Reading]) -> list[Reading]:
    """The readings after half of the steps."""
    return [reading for reading in readings if reading.step > readings[-1].step / 2]


def slope(readings: list[Reading]) -> float:
    """MiB of resident memory per 1,000 steps, by least squares; 0.0 for fewer than two readings."""
    if len(readings) < 2:
        return 0.0
    return 1000.0 * float(np.polyfit([r.step for r in readings], [r.rss_mib for r in readings], 1)[0])


def problems(readings: list[Reading], tolerance: float) -> list[str]:
    """What grows over the second half, one line each.

    Args:
      readings: at least one.
      tolerance: of the memory, in MiB per 1,000 steps.
    """
    late, found = second_half(readings), []
    quarters = late[: len(late) // 2], late[len(late) // 2 :]
    for name in COUNTS if quarters[0] else ():
        before, after = (min(getattr(reading, name) for reading in quarter) for quarter in quarters)
        if after > before:
            found.append(f"{name} grow from {before} to {after} (from step {quarters[1][0].step} on)")
    if (rate := slope(late)) > tolerance:
        found.append(f"the memory grows by {rate:.1f} MiB per 1,000 steps, over {tolerance:g}")
    return found


def table(readings: list[Reading], lines: int = 8) -> str:
    """Some of the readings as Markdown, the first and the last among them."""
    places = sorted({round(i) for i in np.linspace(0, len(readings) - 1, min(lines, len(readings)))})
    text = ["| " + " | ".join(Reading._fields) + " |", "|---" * len(Reading._fields) + "|"]
    for place in places:
        text.append("| " + " | ".join(f"{value:.1f}" if isinstance(value, float) else str(value)
                                      for value in readings[place]) + " |")  # fmt: skip
    return "\n".join(text)


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=list(PROGRAMS))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=0, help="steps between two readings; 0: 40 readings")
    parser.add_argument("--tolerance", type=float, default=4.0, help="MiB of memory per 1,000 steps")
    parser.add_argument("--workers", type=int, default=1, help="processes of the verifier")
    parser.add_argument("--saves", type=int, default=4, help="evaluations and checkpoints")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="rl_jax-flat-") as folder:
        sizes = dict(every=options.every, workers=options.workers, saves=options.saves)
        readings = watch(options.program, pathlib.Path(folder), options.steps, **sizes)
    if not readings:
        print(f"{options.program} made no step of which --every={options.every} is a divisor", file=sys.stderr)
        return 2
    found = problems(readings, options.tolerance)
    print(table(readings))
    rate, done = slope(second_half(readings)), readings[-1].step
    print(f"\n{options.program}, up to step {done} of {options.steps}: " + ("; ".join(found) if found else "flat"))
    print(f"memory over the second half: {rate:+.2f} MiB per 1,000 steps, of {options.tolerance:g} that are allowed\n")
    last = {"tool": "flat_memory", "options": vars(options), "mib_per_1000_steps": rate, "problems": found}
    print(json.dumps(last | {"readings": [list(reading) for reading in readings]}))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
