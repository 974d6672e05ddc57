"""Best-of-n among an agent's trajectories by a reward model: ARMAP, arXiv 2502.12130.

    python -m experiments.tools.best_trajectory --reward=runs/armap --run=runs/second

--run is a run of experiments.agents with agent.record=true, --reward one of experiments.reward_model
(configs/preferences/armap.py) with the same tokens. Of each recorded group of trajectories of one prompt the reward
model takes the best of n. The table has the environment's reward of what it takes and the share of it that is solved
(a reward of --solved or more), exact over all subsets of a group, beside those of the environment's own choice, the
bound. n = 1 is a choice at random, the policy. Prompts of the run that the reward model was trained on are left out, if
that run is still where it was.
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


def whole_groups(folder: pathlib.Path, newest: int) -> tuple[list[list[Trajectory]], int]:
    """(the groups of a run with as many trajectories of one segment as the largest has, how many have fewer).

    Raises:
      ValueError: if there is none of two trajectories or more.
    """
    found = [[one for one in group if len(one.segments) == 1] for group in episodes.groups(folder, newest)]
    size = max(map(len, found), default=0)
    if size < 2:
        raise ValueError(f"{folder}: no group has two trajectories or more; set sample.group_size")
    whole = [group for group in found if len(group) == size]
    return whole, len(found) - len(whole)


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


def unseen(groups: list[list[Trajectory]], trained_on: str) -> tuple[list[list[Trajectory]], int]:
    """(the groups of prompts that a recorded run does not have, how many were left out; -1: the run is not there).

    Args:
      groups: of whole_groups.
      trained_on: data.path of the reward model: workdir of experiments.agents, or its folder of trajectories.

    Raises:
      ValueError: if no group is left.
    """
    if not pathlib.Path(trained_on).is_dir():
        return groups, -1
    seen = {group[0].prompt_id for group in episodes.groups(pathlib.Path(trained_on))}
    kept = [group for group in groups if group[0].prompt_id not in seen]
    if not kept:
        raise ValueError(f"all {len(groups)} groups are of prompts in {trained_on}, which the reward model knows")
    return kept, len(groups) - len(kept)


def measure(groups: list[list[Trajectory]], scores: np.ndarray, solved: float = 0.5) -> list[tuple]:
    """Rows for n = 1, 2, 4, ... up to the group's size: the environment's reward of what is taken, and what is solved.

    Args:
      groups: P of them, of G trajectories each.
      scores: float [P * G].
      solved: the reward from which a trajectory is solved.

    Returns:
      (n, mean reward of what the scores take, of the best, share solved of what the scores take, of the best).
    """
    gold = np.array([[one.reward for one in group] for group in groups])
    own, done = scores.reshape(gold.shape), (gold >= solved).astype(np.float64)
    sizes = sorted({1, gold.shape[1], *(n for n in (2, 4, 8, 16) if n < gold.shape[1])})
    columns = [benchmarks.best_of_n(by, worth, sizes) for worth in (gold, done) for by in (own, gold)]
    return [(n, *(float(found.gold) for found in row)) for n, *row in zip(sizes, *columns, strict=True)]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reward", required=True, help="workdir of experiments.reward_model")
    parser.add_argument("--run", required=True, type=pathlib.Path, help="workdir of experiments.agents")
    parser.add_argument("--newest", type=int, default=0, help="how many of the newest steps are read; 0: all")
    parser.add_argument("--solved", type=float, default=0.5, help="the reward from which a trajectory is solved")
    options = parser.parse_args(arguments)
    try:
        model = load_reward_model(options.reward)
        whole, partial = whole_groups(options.run, options.newest)
        groups, dropped = unseen(whole, model.config.data.path)
        scores = grades(model, [one for group in groups for one in group])
        rows = measure(groups, scores, options.solved)
    except (ValueError, OSError) as error:
        print(f"experiments.tools.best_trajectory: {error}", file=sys.stderr)
        return 2
    gone = f"{model.config.data.path} is gone: none left out"
    known = f"{dropped} of trained prompts left out" if dropped >= 0 else gone
    print(f"{len(groups)} groups of {len(groups[0])} ({known}, {partial} of fewer left out)\n")
    print("| n | reward model | environment | solved: reward model | solved: environment |\n|---|---|---|---|---|")
    print("\n".join(f"| {n} | " + " | ".join(f"{number:.3f}" for number in row) + " |" for n, *row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
