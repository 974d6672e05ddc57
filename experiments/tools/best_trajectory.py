"""Best-of-n among an agent's trajectories by a reward model: ARMAP, arXiv 2502.12130.

    python -m experiments.tools.best_trajectory --reward=runs/armap --run=runs/second

--run is a run of experiments.agents with agent.record=true, --reward one of experiments.reward_model
(configs/preferences/armap.py) with the same tokens. Of each recorded group of trajectories of one prompt the reward
model takes the best of n; the table has the environment's reward of what it takes, exact over all subsets of a group,
beside that of the environment's own choice. n = 1 is the policy.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

from experiments.parts.judges.trained import RewardModel, load_reward_model
from rl_jax import preferences
from rl_jax.core.types import TokenBatch
from rl_jax.experience.trajectory import Trajectory
from rl_jax.preferences import episodes
from rl_jax.rewards import benchmarks


def whole_groups(folder: pathlib.Path, newest: int) -> list[list[Trajectory]]:
    """The groups of a run, each with as many trajectories of one segment as the largest has.

    Raises:
      ValueError: if there is none of two trajectories or more.
    """
    found = [[one for one in group if len(one.segments) == 1] for group in episodes.groups(folder, newest)]
    size = max(map(len, found), default=0)
    if size < 2:
        raise ValueError(f"{folder}: no group has two trajectories or more; set sample.group_size")
    return [group for group in found if len(group) == size]


def grades(model: RewardModel, trajectories: Sequence[Trajectory]) -> np.ndarray:
    """The reward of each trajectory's tokens, float32 [N]."""
    config = model.config
    records = [episodes.labelled([one], 0.0)[0] for one in trajectories]
    arrays, _ = preferences.encode_labels(
        model.tokenizer,
        records,
        prompt_buckets=(max(config.rollout.prompt_buckets),),
        completion_length=config.rollout.completion_length,
        truncate="left",
        empty="keep",
    )
    rows = preferences.rows_of(arrays)
    return model.score_rows(TokenBatch(rows["tokens"], rows["positions"], rows["segment_ids"]))


def measure(groups: list[list[Trajectory]], scores: np.ndarray) -> list[tuple[int, float, float]]:
    """(n, the environment's reward of what the scores take, of the best) for n = 1, 2, 4, ... up to the group's size.

    Args:
      groups: P of them, of G trajectories each.
      scores: float [P * G].
    """
    gold = np.array([[one.reward for one in group] for group in groups])
    sizes = sorted({1, gold.shape[1], *(n for n in (2, 4, 8, 16) if n < gold.shape[1])})
    rows = zip(*(benchmarks.best_of_n(by, gold, sizes) for by in (scores.reshape(gold.shape), gold)), strict=True)
    return [(n, float(own.gold), float(best.gold)) for n, (own, best) in zip(sizes, rows, strict=True)]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reward", required=True, help="workdir of experiments.reward_model")
    parser.add_argument("--run", required=True, type=pathlib.Path, help="workdir of experiments.agents")
    parser.add_argument("--newest", type=int, default=0, help="how many of the newest steps are read; 0: all")
    options = parser.parse_args(arguments)
    try:
        groups = whole_groups(options.run, options.newest)
        scores = grades(load_reward_model(options.reward), [one for group in groups for one in group])
        rows = measure(groups, scores)
    except (ValueError, OSError) as error:
        print(f"experiments.tools.best_trajectory: {error}", file=sys.stderr)
        return 2
    print(f"{len(groups)} groups of {len(groups[0])}\n\n| n | reward model | environment |\n|---|---|---|")
    print("\n".join(f"| {n} | {own:.3f} | {best:.3f} |" for n, own, best in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
