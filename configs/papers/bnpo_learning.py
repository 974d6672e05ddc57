"""BNPO (arXiv 2506.02864): dividing by a Beta density that follows the pass rates learns more than a fixed scale.

    python -m experiments.ablation bnpo_learning

All arms have PPO's clip and Adam, so that what differs is how questions are weighed against each other.
One question in 28 has no right answer, in all arms alike; the lead, though clear of 0, is of .002 to .005.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """learning: the mean chance of a right answer over the training."""
    names = dict(reinforce="group_centered", reinforce_pp="reinforce_pp", grpo="group_relative", bnpo="beta_normalized")
    return ConfigDict(
        dict(
            paper="arXiv 2506.02864",
            claim="BNPO learns more than GRPO, REINFORCE++ and REINFORCE with a baseline",
            scaled_down="64 completions of 3 tokens, 16 questions of all difficulties; the paper has Qwen2.5-7B",
            study="answers_by_policy_gradient",
            settings=dict(
                arms={arm: dict(slots=dict(advantage=name)) for arm, name in names.items()},
                vocab=4,
                length=3,
                world=dict(prompts=16, logit_scale=1.0, right=(0.02, 0.9)),
                recipe=dict(groups=16, group_size=8, minibatches=2, steps=100, learning_rate=0.03, optimizer="adam"),
            ),
            seeds=tuple(range(50)),  # the first ten alone left REINFORCE undecided
            metric="learning",
            expected=tuple(
                dict(metric="learning", increasing=(other, "bnpo"), by=0.0)
                for other in ("grpo", "reinforce_pp", "reinforce")
            ),
            tried=2,  # ten seeds, then fifty
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
