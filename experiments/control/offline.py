"""Offline reinforcement learning: a policy from recorded transitions, evaluated in their environment.

    python -m experiments.control.offline --config=configs/control/offline.py:pointmass,iql
    python -m experiments.control.offline --config=configs/control/offline.py:gridworld,cql
    python -m experiments.control.offline --config=configs/control/offline.py:pointmass,bc --config.dataset.path=DATA

The data are those of scripted behaviours of mixed quality, or of dataset.path: a folder that control.ppo
--config.record.path=FOLDER recorded, Minari's or D4RL's HDF5, a TFDS folder of RLDS episodes. eval/normalized is 0 for
random actions and 100 for the scripted expert. With a group `continual` the data are those of several tasks, one after
the other (experiments.parts.continual_runs, hyper_runs and skill_runs) or at once (in_context_runs, history_runs); with
a group `online` it goes on in the environment (online_runs); `bq_nco` imitates optimal tours (tour_runs). Runs, meshes,
checkpoints and the loop are control.ppo's.
"""

import pathlib

from experiments.parts import (
    continual_runs,
    control_loop,
    flags,
    history_runs,
    hyper_runs,
    in_context_runs,
    offline_runs,
    online_runs,
    picture_judges,
    skill_runs,
    tour_runs,
)

# algorithm.fn -> what makes a run; others learn one task.
SEQUENCES = {
    "oer": continual_runs.make_continual_run,
    "hypercrl": hyper_runs.make_hyper_run,
    "psec": skill_runs.make_skill_run,
    "t2mir": in_context_runs.make_in_context_run,
    "t2mir_ad": history_runs.make_history_run,
}
OWN = {"bq_nco": tour_runs.make_tour_run}  # of one task, with an evaluation of its own


def run(config, workdir: pathlib.Path) -> None:
    """Trains in `workdir`. Raises ValueError if the config is for another program."""
    if config.program != "control.offline":
        raise ValueError(f"this config is for python -m experiments.{config.program}")
    if "continual" in config and config.algorithm.fn not in SEQUENCES:
        raise ValueError(f"continual: algorithm.fn={config.algorithm.fn!r} learns one task; {' or '.join(SEQUENCES)}")
    one_task = online_runs.make_online_run if "online" in config else offline_runs.make_offline_run
    make_run = picture_judges.keeping((SEQUENCES | OWN).get(config.algorithm.fn, one_task), config, workdir)
    control_loop.train(config, workdir, make_run, lambda config: lambda state, step: [])


if __name__ == "__main__":
    flags.main(run, several_processes=True)
