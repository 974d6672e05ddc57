"""DCPO (arXiv 2509.02333): bounds that widen for rare tokens let a rare good token be learned sooner than fixed ones.

    python -m experiments.ablation dcpo_rare_tokens

The setting of cispo_rare_tokens: a token of probability .01 leads to right answers 9 times in 10, the others 3 times.
At q = .01 DCPO's ratio may reach 5, a fixed bound of .2 allows 1.2 and clip-higher 1.28.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """learning: the mean chance of a right answer over the training."""
    return ConfigDict(
        dict(
            paper="arXiv 2509.02333",
            claim="a rare good token is learned sooner with DCPO's dynamic bounds than with clip-higher or PPO's clip",
            scaled_down="a table over 8 tokens, 2 a completion; the paper has Qwen2.5-Math of 1.5B to 14B",
            study="answers_by_policy_gradient",
            settings=dict(
                arms={
                    "grpo": dict(slots=dict(aggregate="token_mean")),
                    "dapo": dict(
                        slots=dict(surrogate=dict(fn="clipped_surrogate", clip_high=0.28), aggregate="token_mean")
                    ),
                    "dcpo": dict(slots=dict(surrogate="rl_jax.losses.policy.bands:dcpo", aggregate="token_mean")),
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
            expected=(dict(metric="learning", increasing=("grpo", "dapo", "dcpo"), by=0.0),),
            tried=1,
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
