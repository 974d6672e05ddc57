"""KL in the loss or in the reward (arXiv 2506.09477): k1 as a loss is no penalty, k3 as a loss is another one.

    python -m experiments.ablation kl_placement

What each should reach is known: pi* = ref exp(R / beta) / Z. k1 in the reward has the gradient of KL(pi || ref); as a
term of the loss k1 has none in expectation and k3 that of KL(ref || pi); k2's is right token by token, and leaves out
what a token does to the KL of those behind it.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """kl_to_optimum: KL(pi || pi*) at the end."""
    return ConfigDict(
        dict(
            paper="arXiv 2506.09477",
            claim="k1 in the reward ends nearest to the optimum, then k2, k3 and k1 in the loss in this order",
            scaled_down="16 completions of 2 tokens with rewards N(0, 1), in place of language models",
            study="kl_placement",
            settings=dict(
                arms={
                    "k1_reward": dict(reward_kl_coef=0.5),
                    **{f"{name}_loss": dict(slots=dict(kl=name, kl_coef=0.5)) for name in ("k2", "k3", "k1")},
                },
                slots=dict(surrogate="reinforce", aggregate="seq_mean_token_sum", advantage="leave_one_out"),
                vocab=4,
                length=2,
                logit_scale=1.0,
                beta=0.5,
                recipe=dict(groups=8, group_size=8, minibatches=1, steps=500, learning_rate=0.3),
            ),
            seeds=tuple(range(20)),
            metric="kl_to_optimum",
            expected=(
                dict(metric="kl_to_optimum", increasing=("k1_reward", "k2_loss", "k3_loss", "k1_loss"), by=0.0),
                dict(metric="pull", arm="k1_reward", at_least=0.999, at_most=1.001),
                dict(metric="pull", arm="k1_loss", at_least=-0.001, at_most=0.001),
                dict(metric="cosine", increasing=("k3_loss", "k2_loss", "k1_reward"), by=0.0),
            ),
            tried=1,
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=5))),
        )
    )
