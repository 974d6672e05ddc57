"""Dynamic sampling (DAPO, arXiv 2503.14476): more is learned in as many updates when no group is without a gradient.

    python -m experiments.ablation dynamic_sampling

Questions that are always or never solved are drawn again. At an equal number of samples instead: see
dynamic_sampling_samples, where nothing of this is left.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """reward: the chance of a right answer after 150 updates."""
    return ConfigDict(
        dict(
            paper="arXiv 2503.14476",
            claim="after as many updates, groups drawn again until their rewards differ have learned more",
            scaled_down="64 questions of pass rates .002 to .9, 16 groups of 8 an update; Qwen2.5-32B on mathematics",
            study="answers_by_policy_gradient",
            settings=dict(
                arms={
                    "uniform": dict(slots=dict(aggregate="token_mean")),
                    "dynamic": dict(slots=dict(aggregate="token_mean"), recipe=dict(candidates=64)),
                },
                vocab=6,
                length=4,
                world=dict(prompts=64, logit_scale=1.5, right=(0.002, 0.9)),
                recipe=dict(groups=16, group_size=8, minibatches=4, steps=150, learning_rate=8.0),
            ),
            seeds=tuple(range(10)),
            metric="reward",
            expected=(dict(metric="reward", increasing=("uniform", "dynamic"), by=0.0),),
            tried=2,  # learning rates 2 and 8
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
