"""Potential-based shaping (reviewed in arXiv 2503.21949) makes learning faster and leaves the best policy as it is.

    python -m experiments.ablation potential_shaping

Seeds 0 to 9 left it undecided (.32, .02 to .7, where .1 is asked) and told how many others to take.
"""

from ml_collections import ConfigDict

SMOKE = dict(config="rewards:smoke,potential", fields=dict(train=dict(total_steps=1024)))


def get_ablation() -> ConfigDict:
    """found: the greedy policy's return at the end, 1 at best; mean_found: its mean over the training."""
    fields = dict(train=dict(total_steps=102_400))
    return ConfigDict(
        dict(
            paper="arXiv 2503.21949",
            claim="with a potential of the place PPO finds the end of a corridor sooner, and ends no lower",
            scaled_down="a corridor of 24 steps with sparse reward",
            study="trained_in_worlds",
            settings=dict(
                arms={
                    "none": dict(
                        config="rewards:potential", fields=fields | dict(algorithm=dict(relabel=dict(scale=0.0)))
                    ),
                    "potential": dict(config="rewards:potential", fields=fields),
                },
                metrics=dict(found="eval/return"),
                points=20,
            ),
            seeds=tuple(range(100, 140)),
            metric="mean_found",
            expected=(
                dict(metric="mean_found", increasing=("none", "potential"), by=0.1),
                dict(metric="found", increasing=("none", "potential"), by=-0.1, within=(0.0, 1.0)),
            ),
            tried=2,
            smoke=dict(seeds=(0, 1), settings=dict(points=1, arms=dict.fromkeys(("none", "potential"), SMOKE))),
        )
    )
