"""Hyper-parameters in RL and how to tune them (arXiv 2306.01324): settings overfit to the seeds they are chosen on.

    python -m experiments.ablation tuning_on_test_seeds

A random search over step sizes, a few tuning seeds each, the best one reported: on those seeds, or on others. Every run
is a real one, of a policy that learns a bandit by policy gradients.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """bias: the score reported less the mean of 64 further seeds of the same setting. A seed is a whole study."""
    return ConfigDict(
        dict(
            paper="arXiv 2306.01324",
            claim="the score on the seeds a setting was chosen on is too high, that on other seeds is not",
            scaled_down="20 step sizes of a bandit policy of 16 arms in place of PPO and DQN on Atari and Brax",
            study="tuning_seeds",
            settings=dict(
                arms={"tuning_seeds": "tuning", "test_seeds": "test"},
                settings=20,
                learning_rates=(0.3, 30.0),
                tuning=3,
                test=10,
                further=64,
                bandit=dict(arms=16),  # the best arm is 1, the mean of all 0
                learner=dict(noise=1.0, group_size=8, steps=50),
            ),
            seeds=tuple(range(300)),
            tried=1,
            metric="bias",
            expected=(
                dict(metric="score", increasing=("test_seeds", "tuning_seeds"), by=0.0),
                dict(metric="bias", arm="tuning_seeds", at_least=0.02),
                dict(metric="bias", arm="test_seeds", at_least=-0.02, at_most=0.02),
            ),
            smoke=dict(seeds=tuple(range(8)), settings=dict(settings=4, further=8)),
        )
    )
