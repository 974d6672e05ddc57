"""Lite PPO (arXiv 2508.08221): the batch's std and a mean over all tokens do better than all the tricks of DAPO.

    python -m experiments.ablation lite_ppo_tricks

Completions are of one length here, so that what is left of the two tricks is the std. DAPO draws up to twice as many
samples as it uses and is judged after as many as the others have drawn. One question in 28 has no right answer, in all
arms alike.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """reward_at_budget: the chance of a right answer after as many samples as GRPO draws."""
    higher = dict(surrogate=dict(fn="clipped_surrogate", clip_high=0.28), aggregate="token_mean")
    return ConfigDict(
        dict(
            paper="arXiv 2508.08221",
            claim="Lite PPO, of two tricks, learns more from as many samples than GRPO and than DAPO",
            scaled_down="64 completions of 3 tokens, 16 questions of all difficulties; the paper has Qwen3-8B",
            study="answers_by_policy_gradient",
            settings=dict(
                arms={
                    "grpo": dict(),
                    "dapo": dict(slots=higher, recipe=dict(candidates=16)),
                    "lite_ppo": dict(slots=dict(advantage="group_mean_batch_std", aggregate="token_mean")),
                },
                vocab=4,
                length=3,
                world=dict(prompts=16, logit_scale=1.0, right=(0.02, 0.9)),
                recipe=dict(groups=8, group_size=8, minibatches=4, steps=100, learning_rate=0.03, optimizer="adam"),
            ),
            seeds=tuple(range(10)),
            metric="reward_at_budget",
            expected=(
                dict(metric="reward_at_budget", increasing=("grpo", "lite_ppo"), by=0.0),
                dict(metric="reward_at_budget", increasing=("dapo", "lite_ppo"), by=0.0),
            ),
            tried=1,
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
