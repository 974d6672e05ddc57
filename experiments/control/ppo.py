"""PPO and its relatives in environments: many runs at once, all in one compiled program.

    python -m experiments.control.ppo --config=configs/control/environments.py:cartpole
    python -m experiments.control.ppo --config=configs/control/environments.py:cartpole --config.num_seeds=64 \
        --config.mesh=seeds:2
    python -m experiments.control.ppo --config=configs/control/environments.py:cartpole --config.record.path=DATA

One call of the program is `log_every` updates (rollout, advantages, epochs of minibatches) of every run, then an
evaluation. Between calls the loop logs and saves. A run is one seed with one value of each swept number. The same
command resumes an interrupted run, bit for bit if the environments are pure functions.
"""

import pathlib

from experiments.parts import control_record, flags
from experiments.parts.control_loop import train


def run(config, workdir: pathlib.Path) -> None:
    """Trains in `workdir`. Raises ValueError if the config is for another program."""
    if config.program != "control.ppo":
        raise ValueError(f"this config is for python -m experiments.{config.program}")
    train(config, workdir, record=control_record.make_recorder)


if __name__ == "__main__":
    flags.main(run, several_processes=True)
