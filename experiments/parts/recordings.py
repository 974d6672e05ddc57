"""The episodes that a step was trained on, as a file of WORKDIR/trajectories (config.agent.record).

rl_jax.preferences.episodes reads them: for DPO on pairs of turns or episodes, and for SFT. A step that is done again
after a crash writes the same file.
"""

import io

import numpy as np

from experiments.parts.run import Run, Step
from experiments.parts.sample_groups import Collected
from rl_jax.core.types import Rollout
from rl_jax.experience import trajectory
from rl_jax.experience.trajectory import Trajectory
from rl_jax.preferences.episodes import FOLDER
from rl_jax.runs.logging import write_atomically


def with_outcomes(episodes: list[Trajectory], rollout: Rollout) -> list[Trajectory]:
    """Episodes whose turns have all that they earned, what the task or config.reward pays among it.

    Their groups are numbered anew: with dynamic sampling each batch of prompts has counted its own from 0.
    """
    result, group = [], -1
    for row, episode in enumerate(episodes):
        numbers, rewards = rollout.turns.numbers[row], rollout.turns.rewards[row]
        earned = [float(np.sum(rewards[numbers == number], dtype=np.float64)) for number in range(len(episode.turns))]
        turns = (turn._replace(reward=reward) for turn, reward in zip(episode.turns, earned, strict=True))
        group += episode.sample == 0
        result.append(episode._replace(turns=tuple(turns), group=group))
    return result


def keep(loop: Run, step: Step, collected: Collected) -> Collected:
    """Writes the step's episodes, if there are any and config.agent.record says so. Returns `collected`."""
    if "agent" not in loop.config or not loop.config.agent.record:
        return collected
    import pyarrow.parquet

    judged, buffer = collected.judged, io.BytesIO()
    episodes = with_outcomes([record["episode"] for record in judged.records], judged.rollout)
    pyarrow.parquet.write_table(trajectory.to_table(episodes), buffer)
    folder = loop.workdir / FOLDER
    folder.mkdir(exist_ok=True)
    write_atomically(folder / f"{step.number:08d}.parquet", buffer.getvalue())
    return collected
