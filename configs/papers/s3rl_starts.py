"""S3RL (arXiv 2403.00673): starts from a teacher's states find what PPO from the beginning does not.

    python -m experiments.ablation s3rl_starts

The teacher is scripted (six steps in ten go to the right); half of the training begins at its states.
Seeds 0 to 9 left it undecided (.6, .2 to .9, where .2 is asked) and told how many others to take.
"""

from ml_collections import ConfigDict

SMOKE = dict(config="rewards:smoke,snapshots", fields=dict(train=dict(total_steps=1024)))


def get_ablation() -> ConfigDict:
    """found: the greedy policy's return at the end, 1 at best; mean_found: its mean over the training."""
    fields = dict(train=dict(total_steps=204_800))
    return ConfigDict(
        dict(
            paper="arXiv 2403.00673",
            claim="with snapshots as starts PPO reaches the end of a long corridor more often",
            scaled_down="a corridor of 40 steps with sparse reward, in place of MuJoCo",
            study="trained_in_worlds",
            settings=dict(
                arms={
                    "none": dict(config="rewards:snapshots", fields=fields | dict(env=dict(snapshots=dict(until=0)))),
                    "snapshots": dict(config="rewards:snapshots", fields=fields),
                },
                metrics=dict(found="eval/return"),
                points=20,
            ),
            seeds=tuple(range(100, 130)),
            metric="found",
            expected=(dict(metric="found", increasing=("none", "snapshots"), by=0.2),),
            tried=2,
            smoke=dict(seeds=(0, 1), settings=dict(points=1, arms=dict.fromkeys(("none", "snapshots"), SMOKE))),
        )
    )
