"""Hands a sweep's tasks to SLURM through submitit, to Ray, or to machines through ssh.

Each task is one ordinary command, which resumes an earlier run. A task submitted twice at once would be two processes
in one folder, so submit again only tasks that have ended.
"""

import importlib
import os
import pathlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from experiments.parts.stops import STOPPED
from experiments.sweep.runner import Slot, Task


def read_hosts(path: str | os.PathLike) -> list[Slot]:
    """One slot per process, from a file with lines "HOST" or "HOST COUNT"; # starts a comment.

    Raises:
      ValueError: if a line has another form, or the file names no host.
    """
    slots = []
    for number, line in enumerate(pathlib.Path(path).read_text(encoding="utf-8").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        count = words[1] if len(words) > 1 else "1"
        # ssh would take a host that starts with "-" as an option.
        if len(words) > 2 or words[0].startswith("-") or not count.isdecimal() or not int(count):
            raise ValueError(f"{path}:{number}: {line!r} must be HOST or HOST COUNT")
        slots += [Slot(host=words[0])] * int(count)
    if not slots:
        raise ValueError(f"{path} has no host: write HOST or HOST COUNT per line")
    return slots


def submit_slurm(
    folder: pathlib.Path, tasks: Sequence[Task], *, jobs: int, parameters: Mapping[str, str], cluster: str = "slurm"
) -> list[str]:
    """Submits the tasks as one job array.

    Args:
      folder: the sweep's; the logs go to its folder slurm.
      tasks: to submit.
      jobs: how many run at a time.
      parameters: submitit's, for example slurm_partition.
      cluster: "slurm", or submitit's "local" (processes on this machine).

    Returns:
      The job ids.

    Raises:
      RuntimeError: if submitit or SLURM is missing.
    """
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise RuntimeError("there is no SLURM here (no sbatch): submit from a login node of the cluster")
    submitit = optional("submitit", 'pip install -e ".[slurm]"')
    executor = submitit.AutoExecutor(folder=folder / "slurm" / "%j", cluster=cluster)
    values = {name: int(value) if value.isdecimal() else value for name, value in parameters.items()}
    executor.update_parameters(**{"timeout_min": 24 * 60, "name": folder.name, **values})
    if cluster == "slurm":
        executor.update_parameters(slurm_array_parallelism=jobs)
    with executor.batch():
        made = [
            executor.submit(submitit.helpers.CommandFunction(list(task.command), verbose=False, cwd=os.getcwd()))
            for task in tasks
        ]
    return [job.job_id for job in made]


def run_ray(tasks: Sequence[Task], *, retries: int, cpus: float = 1.0, again: int = 0) -> list[int]:
    """Runs the tasks at the same time on the Ray cluster of this machine, or on a new local one.

    Args:
      tasks: to run.
      retries: how often Ray starts a task again whose machine is lost.
      cpus: of each task.
      again: how often a command that ends with an error is started again; not one that a signal has stopped.

    Returns:
      Their exit statuses.
    """
    ray = optional("ray", 'pip install -e ".[ray]"')
    if not ray.is_initialized():
        ray.init()
    folder = os.getcwd()

    def run(command):
        status = subprocess.run(command, cwd=folder).returncode
        for _ in range(again):
            if status in (0, STOPPED):
                break
            status = subprocess.run(command, cwd=folder).returncode
        return status

    remote = ray.remote(num_cpus=cpus, max_retries=retries)(run)
    return ray.get([remote.remote(list(task.command)) for task in tasks])


def optional(package: str, install: str):
    """An optional package, imported.

    Raises:
      RuntimeError: if it is missing; the message has the line that installs it.
    """
    try:
        return importlib.import_module(package)
    except ImportError:
        raise RuntimeError(f"{package} is not installed; install it with: {install}") from None
