"""Kills the trainer or the sampler of an asynchronous run; the two must end as one process that was left alone.

    python -m experiments.tools.async_kills --kills=20

Three runs of experiments.grpo_async at its smallest size, counted, eta 2: one process; two processes whose sampler
sleeps after every decode call; two processes of which either is killed by SIGKILL at drawn moments and each time
started again by the same call. Their logs and final.json must be equal in every byte. The processes are forks of this
one, which has imported everything and started nothing. The last line is JSON; the exit code is 1 if a run differs.
"""

import argparse
import json
import pathlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from configs import grpo_async as async_config
from experiments import grpo_async
from experiments.parts import async_links
from experiments.parts.async_flow import LOG
from experiments.parts.async_groups import Groups
from experiments.parts.async_shares import names_of
from experiments.tools import chaos
from experiments.tools.kills import Fork
from rl_jax.training import compilation

STEPS, EVERY = 40, 2  # of a run, and from checkpoint to checkpoint
SLEEP_S = 0.02  # of the slow sampler, after each decode call
LIMIT_S = 600.0


def config_of(folder: pathlib.Path):
    """The smallest run. folder: for the prepared data."""
    config = async_config.get_config("smoke")
    config.model.update(embed_dim=16, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=16, mlp_dim=16)
    config.task.update(num_train=100, num_test=20, data_dir=str(folder / "data"))
    config.rollout.engine.slots = 12
    config.sample.update(prompts_per_step=2, group_size=4)
    config.flow.decode_steps = 2
    config.train.steps, config.sft.steps = STEPS, 0
    config.algorithm.entropy_coef = 0.01  # something to learn where no reward is
    config.eval.update(every=0, num_prompts=4, batch_size=4)
    config.checkpoint.every = EVERY
    config.reward.num_workers = 0
    config.log.update(progress=False, tensorboard=False)
    return config.lock()


class Sides:
    """The processes of a run.

    Args:
      folder: for data and what they print.
      workdir: of the run.
      slow: whether the sampler sleeps.
    """

    def __init__(self, folder: pathlib.Path, workdir: pathlib.Path, *, slow: bool = False):
        self._folder, self.workdir, self._slow = folder, workdir, slow

    def start(self, role: str) -> Fork:
        """Starts "both", "trainer" or "sampler"."""
        return Fork(lambda: self._run(role), self._folder / f"{self.workdir.name}_{role}.txt")

    def _run(self, role: str) -> None:
        config, link = config_of(self._folder), async_links.make_link(role, self.workdir, "")
        if role != "sampler":
            return grpo_async.run(config, self.workdir, link=link)
        if self._slow:
            step = Groups.step
            Groups.step = lambda *args: (step(*args), time.sleep(SLEEP_S))
        grpo_async.run_sampler(config, self.workdir, link)


def wait(condition: Callable[[], bool], what: str) -> None:
    """Waits until a condition holds. Raises TimeoutError after LIMIT_S seconds."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not come within {LIMIT_S} s")
        time.sleep(0.01)


def to_the_end(sides: Sides, kills: int, seed: int) -> list[str]:
    """Runs two processes to their end, and kills either of them `kills` times. Returns which were killed."""
    draw, names = random.Random(seed), ("trainer", "sampler")
    return killed_on_the_way(sides, names, lambda: draw.choice(names), draw, kills, rows=STEPS - 4, pause_s=0.3)


def killed_on_the_way(
    sides: Any,
    names: Sequence[str],
    choose: Callable[[], str],
    draw: random.Random,
    kills: int,
    *,
    rows: int,
    pause_s: float,
) -> list[str]:
    """Runs processes to their end; kills one after the other, and starts each again. Returns which were killed.

    Args:
      sides: has workdir, and start(name) -> Fork.
      names: of the processes.
      choose: gives the name of the next to kill.
      draw: of the moments.
      kills: how many.
      rows: of metrics.jsonl, over which the kills are spread.
      pause_s: seconds from a row to its kill, at most.

    Raises:
      RuntimeError: if a process that was not killed ends with an error.
    """
    killed, running = [], {name: sides.start(name) for name in names}
    done = sides.workdir / "final.json"
    try:
        for number in range(kills):
            name, goal = choose(), (number + 1) * rows // (kills + 1)
            wait(lambda goal=goal: chaos.progress_of(sides.workdir) >= goal or done.exists(), f"row {goal}")
            time.sleep(draw.random() * pause_s)
            if done.exists():
                break
            running[name].kill()
            running[name].wait()
            killed.append(name)
            running[name] = sides.start(name)
        for name, process in running.items():
            if status := process.wait(LIMIT_S):
                raise RuntimeError(f"{name} of {sides.workdir} ended with status {status}")
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return killed


def check(kills: int, folder: pathlib.Path, seed: int) -> dict:
    """The three runs. Returns kills by side, and the names of the files that differ in the slow and the killed run."""
    (folder / "one").mkdir(parents=True)
    process = Sides(folder, folder / "one").start("both")
    if status := process.wait(LIMIT_S):
        raise RuntimeError(f"the run of one process ended with status {status}: see {folder}")
    to_the_end(Sides(folder, folder / "slow", slow=True), 0, seed)
    killed = to_the_end(Sides(folder, folder / "killed"), kills, seed)
    expected, differ = chaos.results_of(folder / "one"), {}
    for name in ("slow", "killed"):
        found = chaos.results_of(folder / name)
        found[LOG] = found.pop(f"{names_of(1)[0]}/{LOG}", "")  # the sampler's folder has it
        differ[name] = sorted(file for file in expected | found if expected.get(file) != found.get(file))
    counts = {role: killed.count(role) for role in ("trainer", "sampler")}
    return {"kills": counts, "files": sorted(expected), "differ": differ}


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of either side, together")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="rl_jax-async-kills-") as folder:
        if not jax.config.jax_compilation_cache_dir:
            compilation.use_cache(pathlib.Path(folder) / "xla")
        found = check(options.kills, pathlib.Path(folder) / "runs", options.seed)
    for name, files in found["differ"].items():
        print(f"{name}: " + (f"DIFFERS in {', '.join(files)}" if files else "equal to the run of one process"))
    print(f"{found['kills']['trainer']} kills of the trainer, {found['kills']['sampler']} of the sampler")
    print(json.dumps({"tool": "async_kills", "options": vars(options), **found}))
    return 1 if any(found["differ"].values()) or "final.json" not in found["files"] else 0


if __name__ == "__main__":
    sys.exit(main())
