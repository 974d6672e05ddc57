"""TIS (Yao et al., 2025; the mismatch: arXiv 2510.18855): weights of at most 2 undo what a sampler adds of its own.

    python -m experiments.ablation tis_mismatch

The sampler's logits are the trainer's with normal noise of size 1 that never changes, as a quantised copy has. `exact`
is the same weight without the cap. Undecided: the mismatch costs something (.96 against .99), and the capped weights,
whose mean is below 1, hardly win it back (.97). With a noise of 2 they lose (.72 against .83), and the exact ones gain
(.94). Until December the noise had the key of the right answers, and knew them.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """reward: the trainer's chance of a right answer at the end."""
    return ConfigDict(
        dict(
            paper="arXiv 2510.18855",
            claim="with a sampler that is not the trained policy, truncated importance weights learn more than none",
            scaled_down="1296 completions of 4 tokens, 8 questions, noise in the logits; int8 language models",
            study="answers_by_policy_gradient",
            settings=dict(
                arms={
                    "matched": dict(slots=dict(aggregate="token_mean")),
                    "uncorrected": dict(slots=dict(aggregate="token_mean"), sampler="noisy"),
                    "tis": dict(slots=dict(aggregate="token_mean", behavior_weight="truncated"), sampler="noisy"),
                    "exact": dict(slots=dict(aggregate="token_mean", behavior_weight="exact"), sampler="noisy"),
                },
                vocab=6,
                length=4,
                world=dict(prompts=8, logit_scale=1.5, right=(0.05, 0.3)),
                recipe=dict(groups=8, group_size=16, minibatches=4, steps=100, learning_rate=8.0),
                sampler_noise=1.0,
            ),
            seeds=tuple(range(10)),
            metric="reward",
            expected=(
                dict(metric="reward", increasing=("uncorrected", "matched"), by=0.0),
                dict(metric="reward", increasing=("uncorrected", "tis"), by=0.0),
            ),
            tried=2,  # noise 1 and 2
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
