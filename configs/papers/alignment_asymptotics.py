"""Asymptotics of language model alignment (arXiv 2404.01730): for long texts best-of-n is KL-regularized RL.

    python -m experiments.ablation alignment_asymptotics

With n growing as exp(length * rate), the law of the best of n and the optimum of KL-regularized RL at the same KL come
together: in reward, and in KL per token. Everything is summed over all texts, so that nothing is sampled but policies
and rewards. The first setting tried had texts of 4 to 64 tokens, where n is still small (exp(.4) to exp(6.4)): there
the KL per token rises (.0029, .0079, .0094) before it falls.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """reward_gap: E_RL[r] - E_BoN[r]; kl_per_token: KL(BoN || RL) / length; slack: of the bound on its KL."""
    return ConfigDict(
        dict(
            paper="arXiv 2404.01730",
            claim="the reward and the law of best-of-n approach those of KL-regularized RL as texts grow longer",
            scaled_down="texts of 16, 64 and 256 independent tokens out of 3, random policies and token rewards",
            study="best_of_n_limit",
            settings=dict(
                arms={"16": dict(length=16), "64": dict(length=64), "256": dict(length=256)},
                nats_per_token=0.1,
                tokens=3,
            ),
            seeds=tuple(range(20)),
            tried=2,
            metric="reward_gap",
            expected=(
                dict(metric="reward_gap", increasing=("256", "64"), by=1e-4),
                dict(metric="kl_per_token", increasing=("256", "64"), by=1e-5),
                dict(metric="reward_gap", arm="16", at_least=0.0, at_most=1.0),
                dict(metric="slack", arm="256", at_least=-1e-9, at_most=10.0),
            ),
            smoke=dict(seeds=(0, 1, 2), settings=dict(tokens=2)),
        )
    )
