"""The entropy of each sampled token of episodes, for what chooses where they branch (agent.branching.measure)."""

from collections.abc import Callable, Sequence

import numpy as np

from experiments.parts.processes import to_host
from experiments.parts.setup import Setup
from experiments.parts.training import jit_score, to_mesh
from rl_jax.core.types import Params
from rl_jax.experience.trajectory import Trajectory
from rl_jax.rollout.lm.episodes import as_rollout
from rl_jax.training.scoring import make_score


def reader(setup: Setup) -> Callable | None:
    """(params, trajectories) -> their entropies; None, and no cost, if no rule asks: branching.measure "entropy".

    params are the run's own: the score attaches adapters. The entropies are the policy's own, of the whole vocabulary,
    whatever the sampling rule cuts off: one forward pass over the rows as they are trained on.

    Args:
      setup: of the run.

    Raises:
      ValueError: if rollouts have a mesh of their own, as scoring has not.
    """
    config = setup.config
    if config.agent.branching.get("measure") != "entropy":
        return None
    if config.rollout.mesh:
        raise ValueError(f"rollout.mesh={config.rollout.mesh!r}: agent.branching.measure='entropy' scores on the mesh "
                         "of training; leave it empty, or take measure='surprise'")  # fmt: skip
    length, prompt = config.rollout.completion_length, max(config.rollout.prompt_buckets)
    score = jit_score(make_score(setup.model, completion_length=length, chunk=config.score.chunk), setup)
    size = config.sample.prompts_per_step * config.sample.group_size

    def read(params: Params, trajectories: Sequence[Trajectory]) -> list[list[np.ndarray]]:
        result: list[list[np.ndarray]] = []
        for start in range(0, len(trajectories), size):
            part = list(trajectories[start : start + size])
            full = part + part[:1] * (size - len(part))  # one shape, one compilation
            pad = setup.task.tokenizer.pad_id
            rollout = as_rollout(full, prompt_length=prompt, completion_length=length, pad_id=pad)
            found = np.asarray(to_host(score(params, to_mesh(setup, rollout.batch)).entropy))
            for row, one in enumerate(part):
                numbers = rollout.turns.numbers[row]
                result.append([found[row, numbers == turn] for turn in range(len(one.turns))])
        return result

    return read
