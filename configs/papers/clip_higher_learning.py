"""Clip-higher (DAPO, arXiv 2503.14476) where there is something to learn: the entropy falls faster, not more slowly.

    python -m experiments.ablation clip_higher_learning

The world of clip_higher, but that one completion in ten is right. Not reproduced, since what is learned faster is
certain sooner; the other half of the claim is. It was the same at every learning rate and with 8 questions.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """mean_entropy: nats a token, mean over the training."""
    return ConfigDict(
        dict(
            paper="arXiv 2503.14476",
            claim="while it learns, an upper clip of .28 keeps more entropy than one of .2, and learns more",
            scaled_down="a table over 8 tokens, 3 a completion, of which one in ten is right; Qwen2.5-32B",
            study="answers_by_policy_gradient",
            settings=dict(
                arms={
                    "symmetric": dict(slots=dict(surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.2))),
                    "higher": dict(slots=dict(surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.28))),
                },
                vocab=8,
                length=3,
                world=dict(prompts=1, logit_scale=1.0, right=(0.1, 0.1)),
                recipe=dict(groups=8, group_size=16, minibatches=16, steps=100, learning_rate=1.0),
            ),
            seeds=tuple(range(40)),
            metric="mean_entropy",
            expected=(
                dict(metric="mean_entropy", increasing=("symmetric", "higher"), by=0.0),
                dict(metric="learning", increasing=("symmetric", "higher"), by=0.0),
            ),
            tried=6,  # also learning rates .3 and 3, and 8 questions with 2, 10 and 30
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
