"""Starts the processes of one asynchronous run, and again those that die: here, on Ray, or under SLURM.

    python -m experiments.sweep.roles -- \
        python -m experiments.grpo_async --config=configs/grpo_async.py --workdir=runs/two

--roles=trainer,sampler:2 (default: trainer,sampler) names them: each gets the command with --role=NAME, and number i of
several --NAME=i besides. --submit=ray runs them as tasks of a Ray cluster, which must have room for all at once,
--submit=slurm as jobs of an array. There, who waits for another that has failed ends after config.flow.timeout_s. On
several machines --workdir or --link must be what all of them reach. The config is the same for all, here with
config.flow.samplers=2.

A process that ends with an error is started --retries times and goes on where its folder says; one that a signal has
stopped after a save (status 75) is not. SIGTERM and Ctrl-C are passed on to all. The exit status is 0 if all end so,
75 if one was stopped, 1 otherwise.
"""

import argparse
import collections
import concurrent.futures
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from experiments.parts.stops import STOPPED
from experiments.sweep import launchers
from experiments.sweep.runner import Task


def tasks_of(roles: str, command: Sequence[str]) -> list[Task]:
    """A task for each process.

    Args:
      roles: NAME or NAME:COUNT, with commas between them.
      command: what they have in common.

    Raises:
      ValueError: if `roles` has another form, names a role twice, or the command has a role already.
    """
    if given := [word for word in command if word.split("=")[0].lstrip("-") == "role"]:
        raise ValueError(f"{given[0]}: leave it out of the command, --roles sets it")
    tasks = []
    for text in roles.split(","):
        name, colon, count = text.partition(":")
        if not name.isidentifier() or (colon and not (count.isdecimal() and int(count))):
            raise ValueError(f"--roles={roles!r}: {text!r} must be NAME or NAME:COUNT, as in trainer,sampler:2")
        for number in range(int(count or 1)):
            own = [f"--role={name}", *([f"--{name}={number}"] if colon else [])]
            label = f"{name}_{number}" if colon else name
            tasks.append(Task(label, pathlib.Path(), [*command, *own], [label]))
    repeated = [label for label, times in collections.Counter(task.name for task in tasks).items() if times > 1]
    if repeated:
        raise ValueError(f"--roles={roles!r} names {repeated[0]!r} twice")
    return tasks


class Here:
    """Processes of this machine that live and end together.

    Args:
      retries: how often a process that ends with an error is started again.
    """

    def __init__(self, retries: int):
        self._retries = retries
        self._processes: dict[str, subprocess.Popen] = {}
        self._ending, self._lock = False, threading.Lock()

    def run(self, tasks: Sequence[Task]) -> dict[str, int]:
        """Runs the tasks; returns the last exit status of each."""
        kept = {number: signal.signal(number, lambda *_: self.end()) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            with concurrent.futures.ThreadPoolExecutor(len(tasks)) as pool:
                futures = {task.name: pool.submit(self._keep, task) for task in tasks}
                return {name: future.result() for name, future in futures.items()}
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)

    def end(self) -> None:
        """SIGTERM to all: they save, and are not started again."""
        self._ending = True
        for process in list(self._processes.values()):
            process.terminate()

    def _keep(self, task: Task) -> int:
        """Runs a task to its end. If it fails for good, the others are ended: they would wait for it."""
        for attempt in range(self._retries + 1):
            with self._lock:
                if self._ending:
                    return STOPPED
                # A session of its own: Ctrl-C in the terminal reaches only this process, which asks it to save.
                process = self._processes[task.name] = subprocess.Popen(task.command, start_new_session=True)
            if self._ending:  # the signal came between the two lines before
                process.terminate()
            status = process.wait()
            if status in (0, STOPPED) or self._ending:
                return status
            left = self._retries - attempt
            print(f"{task.name} ended with status {status}; {left} of {self._retries} starts left", file=sys.stderr)
        self.end()
        return status


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options. Exits if they are invalid."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--roles", default="trainer,sampler")
    parser.add_argument("--submit", choices=("slurm", "ray"))
    parser.add_argument("--retries", type=int, default=3, help="starts of a process after its first; not under slurm")
    parser.add_argument("--cpus", type=float, default=1.0, help="of each process, on ray")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("runs/roles"), help="slurm's logs")
    parser.add_argument(
        "--slurm",
        type=lambda text: [part for part in text.split(",") if part],
        default=[],
        help="for submitit: slurm_partition=gpu,timeout_min=600,gpus_per_node=8",
    )
    parser.add_argument("--cluster", default="slurm", choices=("slurm", "local"), help="local: with submitit, here")
    parser.add_argument("command", nargs="+", help="after --: python -m experiments.grpo_async ...")
    options = parser.parse_args(arguments)
    if options.retries < 0 or options.cpus <= 0:
        parser.error("--retries must be 0 or more, and --cpus above 0")
    if wrong := [text for text in options.slurm if "=" not in text]:
        parser.error(f"--slurm={wrong[0]}: write NAME=VALUE")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options = parse(arguments)
    try:
        tasks = tasks_of(options.roles, options.command)
        if options.submit == "slurm":
            parameters = dict(text.split("=", 1) for text in options.slurm)
            at_once = dict(jobs=len(tasks), parameters=parameters, cluster=options.cluster)
            jobs = launchers.submit_slurm(options.folder, tasks, **at_once)
            print(f"submitted {', '.join(task.name for task in tasks)}: {', '.join(jobs)}")
            return 0
        if options.submit == "ray":
            found = launchers.run_ray(tasks, retries=options.retries, cpus=options.cpus, again=options.retries)
            statuses = {task.name: status for task, status in zip(tasks, found, strict=True)}
        else:
            statuses = Here(options.retries).run(tasks)
    except (ValueError, RuntimeError) as error:
        print(f"experiments.sweep.roles: {error}", file=sys.stderr)
        return 2
    print(", ".join(f"{name}: {status}" for name, status in statuses.items()))
    if set(statuses.values()) <= {0, STOPPED}:
        return max(statuses.values())
    return 1


if __name__ == "__main__":
    sys.exit(main())
