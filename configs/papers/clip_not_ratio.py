"""Group-relative REINFORCE off policy (arXiv 2509.24203): the clip keeps stale samples safe, the ratio adds nothing.

    python -m experiments.ablation clip_not_ratio

Samples are 8 steps old and make 4 updates; all arms have R - mean_g as the advantage. `rec` is PPO's mask without its
ratio, `ppo` has both, `ratio` only the importance weight, `reinforce` neither.
Not reproduced: `rec` learns as much as `ppo`, as claimed (.878 and .879), but both less than without a clip (.98): in
a table stale samples collapse nothing, and the clip only slows it.
"""

from ml_collections import ConfigDict

COMMON = dict(advantage="group_centered", aggregate="token_mean")


def get_ablation() -> ConfigDict:
    """reward: the chance of a right answer at the end."""
    names = dict(reinforce="reinforce", ratio="importance_sampling", rec="rec_one_side", ppo="clipped_surrogate")
    return ConfigDict(
        dict(
            paper="arXiv 2509.24203",
            claim="on stale samples REINFORCE needs PPO's clip, not its ratio: with the clip alone it learns as much",
            scaled_down="256 completions of 4 tokens, 8 questions, samples 8 steps old; the paper has Qwen2.5",
            study="answers_by_policy_gradient",
            settings=dict(
                arms={arm: dict(slots=dict(surrogate=name, **COMMON)) for arm, name in names.items()},
                vocab=4,
                length=4,
                world=dict(prompts=8, logit_scale=1.5, right=(0.05, 0.3)),
                recipe=dict(
                    groups=8, group_size=16, minibatches=4, steps=100, learning_rate=16.0, lag=8, old="behavior"
                ),
            ),
            seeds=tuple(range(10)),
            metric="reward",
            expected=(
                dict(metric="reward", increasing=("reinforce", "rec"), by=0.02),
                dict(metric="reward", increasing=("ratio", "rec"), by=0.02),
                dict(metric="reward", increasing=("ppo", "rec"), by=-0.03),
            ),
            tried=1,
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
