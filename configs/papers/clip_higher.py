"""Clip-higher (DAPO, arXiv 2503.14476): with more room above than below, the entropy collapses less.

    python -m experiments.ablation clip_higher

The rewards are a coin: nothing can be learned, and only chance and the clip move the entropy (as in clip_entropy).
It was chosen after worlds with right answers had shown the opposite, which stands in clip_higher_learning.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """entropy: nats a token at the end."""
    return ConfigDict(
        dict(
            paper="arXiv 2503.14476",
            claim="the entropy ends higher with an upper clip of .28 than with one of .2",
            scaled_down="a table over 8 tokens, 2 a completion, that earns 0 or 1 by chance; Qwen2.5-32B",
            study="answers_by_policy_gradient",
            settings=dict(
                arms={
                    "symmetric": dict(slots=dict(surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.2))),
                    "higher": dict(slots=dict(surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.28))),
                },
                vocab=8,
                length=2,
                world=dict(prompts=1, logit_scale=1.0, right=(0.5, 0.5), sure=False),
                recipe=dict(groups=8, group_size=16, minibatches=16, steps=100, learning_rate=1.0),
            ),
            seeds=tuple(range(100)),
            metric="entropy",
            expected=(dict(metric="entropy", increasing=("symmetric", "higher"), by=0.0),),
            tried=12,  # worlds and learning rates; and of seeds 20, 40 and 100
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
