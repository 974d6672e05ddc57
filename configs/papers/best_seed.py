"""Deep reinforcement learning that matters (arXiv 1709.06560): the best of a few seeds says little of a method.

    python -m experiments.ablation best_seed

Two learners that differ in their step size: the careful one is better on average, the bold one varies more. Reported
are the mean of five seeds, or the best of five or ten. Every run is a real one, of a policy that learns a bandit.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """bias, bold_bias: what is reported less the mean of 64 further seeds; wrong: the share of studies that name the
    worse learner the better one. A seed is a whole study."""
    return ConfigDict(
        dict(
            paper="arXiv 1709.06560",
            claim="the best of k seeds is too high, more so the larger k is, and orders two methods wrongly more often",
            scaled_down="a bandit policy of 16 arms in place of TRPO, DDPG, PPO and ACKTR on MuJoCo",
            study="best_of_seeds",
            settings=dict(
                arms={
                    "mean_of_5": dict(report="mean", runs=5),
                    "best_of_5": dict(report="max", runs=5),
                    "best_of_10": dict(report="max", runs=10),
                },
                learning_rates=dict(careful=3.0, bold=10.0),
                further=64,
                bandit=dict(arms=16),  # the best arm is 1, the mean of all 0
                learner=dict(noise=1.0, group_size=8, steps=50),
            ),
            seeds=tuple(range(300)),
            tried=1,
            metric="bias",
            expected=(
                dict(metric="bias", arm="mean_of_5", at_least=-0.02, at_most=0.02),
                dict(metric="bias", increasing=("mean_of_5", "best_of_5", "best_of_10"), by=0.0),
                dict(metric="bold_bias", increasing=("mean_of_5", "best_of_5", "best_of_10"), by=0.0),
                dict(metric="wrong", increasing=("mean_of_5", "best_of_5"), by=0.0),
            ),
            smoke=dict(seeds=tuple(range(8)), settings=dict(further=8)),
        )
    )
