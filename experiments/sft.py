"""Supervised fine-tuning on a task's own solutions; the warm start of the other programs.

    python -m experiments.sft --config=configs/tasks/arithmetic.py --workdir=runs/arithmetic/sft

Runs config.sft.steps steps, or until the evaluated pass@1 reaches config.sft.stop_at. The same command resumes. The
loop is in experiments/parts/warm_start.py, because other programs begin with it.
"""

import pathlib

from experiments.parts import flags
from experiments.parts.preference_data import with_data
from experiments.parts.setup import make_setup
from experiments.parts.warm_start import fine_tune, sft_run
from rl_jax.tasks import Task


def run(config, workdir: pathlib.Path, *, task: Task | None = None) -> bool:
    """Fine-tunes in `workdir`. Returns False if a signal ended it early. task: replaces config.task.

    Raises ValueError if there is nothing to train.
    """
    if not config.sft.steps:
        raise ValueError("sft.steps=0, as a config has it whose model needs no warm start: set --config.sft.steps")
    loop = sft_run(config, workdir)
    return fine_tune(with_data(make_setup(config, task)), loop)


if __name__ == "__main__":
    flags.main(run, several_processes=True)
