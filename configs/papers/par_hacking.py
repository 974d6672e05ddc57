"""PAR (arXiv 2502.18770): a bounded reward, the chance of beating the reference, is hacked less than a raw one.

    python -m experiments.ablation par_hacking

Of 64 completions 3 % are bad and earn 6 standard deviations too much. All arms have the same weight of the KL.
Undecided: PAR's mean is between the raw reward's and that of clipping at 3.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """reward: the true reward at the end. hacked: the probability of the overrated completions."""
    common = dict(surrogate="reinforce", advantage="leave_one_out", aggregate="seq_mean_token_sum")
    shapes = dict(
        raw="unchanged", clipped=dict(fn="clip_rewards", low=-3.0, high=3.0), par=dict(fn="against_references")
    )
    return ConfigDict(
        dict(
            paper="arXiv 2502.18770",
            claim="PAR ends with more true reward and less hacking than the raw reward and than a clipped one",
            scaled_down="64 completions of 3 tokens with made-up rewards; the paper has Gemma-2B and Llama-3-8B",
            study="wrong_somewhere",
            settings=dict(
                arms={name: dict(shape=shape, **common) for name, shape in shapes.items()},
                vocab=4,
                length=3,
                prompts=8,
                share=0.03,
                excess=6.0,
                noise=0.5,
                references=10,
                recipe=dict(
                    groups=8,
                    group_size=16,
                    minibatches=1,
                    steps=300,
                    learning_rate=0.03,
                    optimizer="adam",
                    reward_kl_coef=0.05,
                ),
            ),
            seeds=tuple(range(10)),
            metric="reward",
            expected=(
                dict(metric="reward", increasing=("raw", "par"), by=0.1),
                dict(metric="reward", increasing=("clipped", "par"), by=0.0),
                dict(metric="hacked", increasing=("par", "raw"), by=0.1),
            ),
            tried=2,  # first, the references were sampled with the random numbers of the samples
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
