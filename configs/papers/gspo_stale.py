"""GSPO (arXiv 2507.18071): one ratio a completion learns more from stale samples than one ratio a token.

    python -m experiments.ablation gspo_stale

Samples are 4 steps old and make 4 updates. The paper's bounds (3e-4, 4e-4) are for thousands of tokens: `gspo_wide` has
100 times as much room. Not reproduced: with the paper's bounds more than half of the tokens are clipped and little is
learned (.33 against .91), with the wide ones .01 less than with GRPO. The paper's reasons, thousands of tokens and a
mixture of experts that routes anew, are not in this world. Where neither clips, both ratios learn the same (.78).
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """reward: the chance of a right answer at the end."""
    return ConfigDict(
        dict(
            paper="arXiv 2507.18071",
            claim="on stale samples the sequence ratio of GSPO learns more than the token ratio of GRPO",
            scaled_down="8 tokens of 2, 8 questions, samples 4 steps old; the paper has Qwen3-30B-A3B",
            study="answers_by_policy_gradient",
            settings=dict(
                arms={
                    "grpo": dict(slots=dict(surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.27))),
                    "gspo": dict(slots=dict(surrogate="gspo")),
                    "gspo_wide": dict(slots=dict(surrogate=dict(fn="gspo", clip_low=0.03, clip_high=0.04))),
                },
                vocab=2,
                length=8,
                world=dict(prompts=8, logit_scale=1.0, right=(0.05, 0.3)),
                recipe=dict(
                    groups=8, group_size=16, minibatches=4, steps=100, learning_rate=8.0, lag=4, old="behavior"
                ),
            ),
            seeds=tuple(range(10)),
            metric="reward",
            expected=(
                dict(metric="reward", increasing=("grpo", "gspo"), by=0.0),
                dict(metric="reward", increasing=("grpo", "gspo_wide"), by=0.0),
            ),
            tried=3,  # also fresh samples, and one gradient of samples of another policy
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
