"""AsymRE (arXiv 2506.20520): off policy a baseline below the mean reward is safe, and one above it collapses.

    python -m experiments.ablation asymre_baseline

All samples come from the initial policy, as far off policy as can be. `below` and `above` shift the baseline by .1 of a
right answer's reward from the group's mean. Not reproduced: the entropy is as claimed (.80, .63, .48), the reward rises
with the baseline (.81, .86, .89). Rewards are certain here, so what the policy collapses onto is a right answer.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """reward: the chance of a right answer at the end; entropy in nats a token."""
    shifts = dict(below=-0.1, mean=0.0, above=0.1)
    return ConfigDict(
        dict(
            paper="arXiv 2506.20520",
            claim="on samples of a fixed policy a baseline below the mean learns and keeps entropy, one above does not",
            scaled_down="64 completions of 3 tokens, 8 questions; the paper has a bandit of 100 arms and Llama-8B",
            study="answers_by_policy_gradient",
            settings=dict(
                arms={
                    arm: dict(
                        slots=dict(
                            advantage=dict(fn="rl_jax.advantages.off_policy:asymmetric", shift=shift),
                            surrogate="reinforce",
                            aggregate="token_mean",
                        )
                    )
                    for arm, shift in shifts.items()
                },
                vocab=4,
                length=3,
                world=dict(prompts=8, logit_scale=1.0, right=(0.2, 0.6)),
                recipe=dict(groups=8, group_size=16, minibatches=1, steps=400, learning_rate=4.0, lag=400),
            ),
            seeds=tuple(range(10)),
            metric="reward",
            expected=(
                dict(metric="reward", increasing=("above", "below"), by=0.1),
                dict(metric="entropy", increasing=("above", "below"), by=0.1),
                dict(metric="entropy", increasing=("mean", "below"), by=0.0),
                dict(metric="reward", arm="below", at_least=0.7),
            ),
            tried=1,
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3, lag=3))),
        )
    )
