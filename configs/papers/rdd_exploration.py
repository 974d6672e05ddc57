"""RDD (arXiv 2505.11044): a bonus from noisy targets, which falls as 1 / n, explores where RND's dies too soon.

    python -m experiments.ablation rdd_exploration

A corridor of 40 steps that pays at its end alone. The arms differ in nothing but the bonus; `none` has none.
Undecided: of 10 seeds without a bonus 5 find the end, with one 8 or 9, but not sooner on average.
"""

from ml_collections import ConfigDict

SMOKE = dict(config="rewards:smoke,rdd", fields=dict(train=dict(total_steps=1024)))


def get_ablation() -> ConfigDict:
    """found: the greedy policy's return at the end, 1 at best; mean_found: its mean over the training."""
    fields = dict(train=dict(total_steps=102_400))
    return ConfigDict(
        dict(
            paper="arXiv 2505.11044",
            claim="with RDD's bonus PPO finds the end of a long corridor sooner than with RND's and without one",
            scaled_down="a corridor of 40 steps with sparse reward, in place of Atari, Adroit and IsaacLab",
            study="trained_in_worlds",
            settings=dict(
                arms={
                    "none": dict(config="rewards:rdd", fields=fields | dict(algorithm=dict(relabel=dict(coef=0.0)))),
                    "rnd": dict(config="rewards:rnd", fields=fields),
                    "rdd": dict(config="rewards:rdd", fields=fields),
                },
                metrics=dict(found="eval/return"),
                points=20,
            ),
            seeds=tuple(range(10)),
            metric="mean_found",
            expected=(
                dict(metric="mean_found", increasing=("none", "rdd"), by=0.1),
                dict(metric="mean_found", increasing=("rnd", "rdd"), by=0.0),
            ),
            tried=1,
            smoke=dict(seeds=(0, 1), settings=dict(points=1, arms=dict.fromkeys(("none", "rnd", "rdd"), SMOKE))),
        )
    )
