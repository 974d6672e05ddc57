"""f-DPG (arXiv 2302.08215): towards one target, the divergence decides between reward and diversity.

    python -m experiments.ablation fdpg_divergences

The target has many modes, which a policy of independent tokens cannot all have: the forward KL covers them, the reverse
KL chooses, Jensen-Shannon is between the two.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """reward: E[R] at the end. entropy: in nats a completion."""
    order = ("reverse_kl", "js", "kl")
    return ConfigDict(
        dict(
            paper="arXiv 2302.08215",
            claim="the reverse KL ends with the most reward, the forward KL with the most entropy, JS between them",
            scaled_down="64 completions of 3 tokens in place of GPT-2 with sentiment and lexical constraints",
            study="divergence_targets",
            settings=dict(
                arms={name: name for name in order},
                vocab=4,
                length=3,
                beta=0.3,
                recipe=dict(groups=1, group_size=64, minibatches=1, steps=600, learning_rate=0.02, optimizer="adam"),
            ),
            seeds=tuple(range(80)),  # the first 20 alone left JS and the reverse KL undecided
            metric="reward",
            expected=(
                dict(metric="reward", increasing=order[::-1], by=0.0),
                dict(metric="entropy", increasing=order, by=0.0),
            ),
            tried=2,  # 20 seeds, then 80
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
