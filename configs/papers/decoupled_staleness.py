"""Decoupled PPO (arXiv 2110.00641; AReaL, arXiv 2505.24298): stale samples need another clip.

    python -m experiments.ablation decoupled_staleness

Samples are 8 steps old. `coupled` is PPO as it is, whose clip is about the policy that has sampled; `decoupled` clips
about the policy at the start of the step and weighs by pi_old / pi_sampler. `unweighted` has that clip alone and does
as well here (.98 against .97): what helps is where the clip is, not the weight.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """reward: the chance of a right answer at the end."""
    return ConfigDict(
        dict(
            paper="arXiv 2110.00641",
            claim="PPO learns less from samples 8 steps old than from fresh ones, and decoupled PPO loses less",
            scaled_down="1296 completions of 4 tokens, 8 questions; the papers have games and language models",
            study="answers_by_policy_gradient",
            settings=dict(
                arms={
                    "fresh": dict(slots=dict(aggregate="token_mean")),
                    "coupled": dict(slots=dict(aggregate="token_mean"), recipe=dict(lag=8, old="behavior")),
                    "unweighted": dict(slots=dict(aggregate="token_mean"), recipe=dict(lag=8)),
                    "decoupled": dict(slots=dict(aggregate="token_mean", behavior_weight="exact"), recipe=dict(lag=8)),
                },
                vocab=6,
                length=4,
                world=dict(prompts=8, logit_scale=1.5, right=(0.05, 0.3)),
                recipe=dict(groups=8, group_size=16, minibatches=4, steps=100, learning_rate=8.0),
            ),
            seeds=tuple(range(10)),
            metric="reward",
            expected=(
                dict(metric="reward", increasing=("coupled", "fresh"), by=0.05),
                dict(metric="reward", increasing=("coupled", "decoupled"), by=0.05),
            ),
            tried=2,  # learning rates 2 and 8
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
