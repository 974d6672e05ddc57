"""Clip and entropy (arXiv 2509.26114): PPO's upper clip lowers the entropy and its lower clip raises it.

    python -m experiments.ablation clip_entropy

The rewards are a coin: nothing can be learned, and only chance and the clips move the entropy.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """entropy: nats a token at the end."""
    return ConfigDict(
        dict(
            paper="arXiv 2509.26114",
            claim="with rewards of chance the upper clip lowers the entropy and the lower clip raises it",
            scaled_down="a table over 8 tokens, 2 a completion, that earns 0 or 1 by chance; Qwen and Llama",
            study="answers_by_policy_gradient",
            settings=dict(
                arms={
                    "upper_only": dict(slots=dict(surrogate=dict(fn="clipped_surrogate", clip_low=1.0, clip_high=0.2))),
                    "symmetric": dict(slots=dict(surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.2))),
                    "lower_only": dict(slots=dict(surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=1e6))),
                },
                vocab=8,
                length=2,
                world=dict(prompts=1, logit_scale=1.0, right=(0.5, 0.5), sure=False),
                recipe=dict(groups=8, group_size=16, minibatches=16, steps=100, learning_rate=1.0),
            ),
            seeds=tuple(range(40)),
            metric="entropy",
            expected=(dict(metric="entropy", increasing=("upper_only", "symmetric", "lower_only"), by=0.0),),
            tried=2,  # also 60 steps
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
