"""CISPO (MiniMax-M1, arXiv 2506.13585): rare tokens that PPO clips away keep their gradient and are learned sooner.

    python -m experiments.ablation cispo_rare_tokens

One question in the guise of many: a token of probability .01 leads to right answers 9 times in 10, the others 3 times.
Sixteen updates a batch, as in the paper. At a learning rate of .1, where no ratio reaches its bound, all are the same.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """learning: the mean chance of a right answer over the training."""
    return ConfigDict(
        dict(
            paper="arXiv 2506.13585",
            claim="a rare good token is learned sooner with clip-higher than with PPO's clip, and soonest with CISPO",
            scaled_down="a table over 8 tokens, 2 a completion; the paper has Qwen2.5-32B",
            study="answers_by_policy_gradient",
            settings=dict(
                arms={
                    "grpo": dict(slots=dict(aggregate="token_mean")),
                    "dapo": dict(
                        slots=dict(surrogate=dict(fn="clipped_surrogate", clip_high=0.28), aggregate="token_mean")
                    ),
                    "cispo": dict(slots=dict(surrogate="cispo", aggregate="token_mean")),
                },
                vocab=8,
                length=2,
                world=dict(
                    prompts=1, logit_scale=1.0, right=(0.3, 0.3), sure=False, fork=dict(probability=0.01, right=0.9)
                ),
                recipe=dict(groups=8, group_size=16, minibatches=16, steps=60, learning_rate=1.0),
            ),
            seeds=tuple(range(20)),
            metric="learning",
            expected=(dict(metric="learning", increasing=("grpo", "dapo", "cispo"), by=0.0),),
            tried=4,  # a rarer token, and three learning rates with it
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
