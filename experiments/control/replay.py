"""Off-policy methods with a replay in environments: DQN and its kin, TD3, SAC, REDQ; one compiled program of many runs.

    python -m experiments.control.replay --config=configs/control/replay.py:cartpole
    python -m experiments.control.replay --config=configs/control/replay.py:pendulum,sac --config.num_seeds=8 \
        --config.mesh=seeds:2

One call of the program is `log_every` updates (steps of the environments, draws from the replay, gradient steps) of
every run, then an evaluation. Runs, meshes, checkpoints and the loop are those of experiments.control.ppo. The replay
is a part of the state: the same command resumes an interrupted run, bit for bit if the environments are pure functions.
"""

import pathlib

from experiments.parts import flags
from experiments.parts.control_loop import train
from experiments.parts.replay_runs import make_replay_recorder, make_replay_run


def run(config, workdir: pathlib.Path) -> None:
    """Trains in `workdir`. Raises ValueError if the config is for another program."""
    if config.program != "control.replay":
        raise ValueError(f"this config is for python -m experiments.{config.program}")
    train(config, workdir, make_replay_run, make_replay_recorder)


if __name__ == "__main__":
    flags.main(run, several_processes=True)
