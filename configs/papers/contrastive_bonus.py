"""Contrastive UCB (arXiv 2207.14800): a bonus over contrastively learned features explores as one over exact counts.

    python -m experiments.ablation contrastive_bonus

The corridor of rdd_exploration. `counts` has the same bonus over the true, one-hot features. Undecided: half of the
ten seeds find the end without a bonus too, and more seeds were not run.
"""

from ml_collections import ConfigDict

SMOKE = dict(config="rewards:smoke,contrast", fields=dict(train=dict(total_steps=1024)))


def get_ablation() -> ConfigDict:
    """found: the greedy policy's return at the end, 1 at best; mean_found: its mean over the training."""
    fields = dict(train=dict(total_steps=102_400))
    return ConfigDict(
        dict(
            paper="arXiv 2207.14800",
            claim="the contrastive bonus finds the end of a long corridor, as counts do, and PPO without one does not",
            scaled_down="a corridor of 40 steps with sparse reward, in place of Atari with SPR",
            study="trained_in_worlds",
            settings=dict(
                arms={
                    "none": dict(config="rewards:counts", fields=fields | dict(algorithm=dict(relabel=dict(coef=0.0)))),
                    "counts": dict(config="rewards:counts", fields=fields),
                    "contrast": dict(config="rewards:contrast", fields=fields),
                },
                metrics=dict(found="eval/return"),
                points=20,
            ),
            seeds=tuple(range(10)),
            metric="found",
            expected=(
                dict(metric="found", increasing=("none", "contrast"), by=0.2, within=(0.0, 1.0)),
                dict(metric="found", increasing=("counts", "contrast"), by=-0.2, within=(0.0, 1.0)),
            ),
            tried=1,
            smoke=dict(
                seeds=(0, 1), settings=dict(points=1, arms=dict.fromkeys(("none", "counts", "contrast"), SMOKE))
            ),
        )
    )
