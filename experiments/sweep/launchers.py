"""Hands a sweep's tasks to something else: SLURM through submitit, Ray, or machines through ssh.

Each task is one ordinary command, which resumes what is there; a task that was handed over twice at once would be two
processes in one folder, so submit again only what has ended.
"""

import importlib
import os
import pathlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from experiments.sweep.runner import Slot, Task


def read_hosts(path: str | os.PathLike) -> list[Slot]:
    """A slot a line of a file "HOST" or "HOST COUNT"; # begins a comment. ValueError naming a line that is neither."""
    slots = []
    for number, line in enumerate(pathlib.Path(path).read_text(encoding="utf-8").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        count = words[1] if len(words) > 1 else "1"
        # A host that begins with "-" would be an option of ssh.
        if len(words) > 2 or words[0].startswith("-") or not count.isdecimal() or not int(count):
            raise ValueError(f"{path}:{number}: {line!r} is not HOST or HOST COUNT")
        slots += [Slot(host=words[0])] * int(count)
    if not slots:
        raise ValueError(f"{path} names no host")
    return slots


def submit_slurm(
    folder: pathlib.Path, tasks: Sequence[Task], *, jobs: int, parameters: Mapping[str, str], cluster: str = "slurm"
) -> list[str]:
    """Submits the tasks as one array of `jobs` at a time; the ids. parameters: submitit's, as slurm_partition.

    cluster: "slurm", or submitit's "local" (processes here). RuntimeError where submitit or SLURM is not there.
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


def run_ray(tasks: Sequence[Task], *, retries: int, cpus: float = 1.0) -> list[int]:
    """Runs the tasks on the Ray cluster that this machine belongs to (or on one of its own); their exit statuses."""
    ray = optional("ray", 'pip install -e ".[ray]"')
    if not ray.is_initialized():
        ray.init()
    folder = os.getcwd()

    def run(command):
        return subprocess.run(command, cwd=folder).returncode

    remote = ray.remote(num_cpus=cpus, max_retries=retries)(run)
    return ray.get([remote.remote(list(task.command)) for task in tasks])


def optional(package: str, install: str):
    """An optional package. RuntimeError with the line that installs it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise RuntimeError(f"{package} is not installed: {install}") from None
