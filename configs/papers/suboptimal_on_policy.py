"""Fine-tuning should use suboptimal, on-policy data (arXiv 2404.14367): own samples, negative gradients and reuse.

    python -m experiments.ablation suboptimal_on_policy

The reference's likeliest action is 20 actions away from the best one, which it takes rarely. Arms with own samples draw
from the policy in every round, the others are given actions of the reference; all see as many samples, and get as many
updates unless they are called once.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """reward: E_pi[R] at the end; kl: KL(pi || ref)."""
    arms = {name: dict(method=name) for name in ("sft", "rwr", "dpo", "best_of_n", "on_policy_rwr", "on_policy_dpo")}
    arms |= {"reinforce_once": dict(method="reinforce", reuse=1), "ppo_once": dict(method="ppo", reuse=1)}
    return ConfigDict(
        dict(
            paper="arXiv 2404.14367",
            claim="own samples beat the reference's for every loss, and updates on reused samples help PPO",
            scaled_down="a bandit of 100 ordered actions, as in the paper's own section on bandits",
            study="suboptimal_data",
            settings=dict(
                arms=arms | {"ppo": dict(method="ppo")},
                actions=100,
                peak=70,
                width=10.0,
                reference=50,
                groups=16,
                group_size=4,
                rounds=60,
                reuse=4,
                learning_rate=0.05,
                beta=0.05,
                temperature=0.2,
                clip=0.2,
            ),
            seeds=tuple(range(20)),
            tried=2,  # of references 20, 50 and 60: from 20 no maximum likelihood finds the peak, nor does DPO
            metric="reward",
            expected=(
                dict(metric="reward", increasing=("sft", "best_of_n"), by=0.0),
                dict(metric="reward", increasing=("rwr", "on_policy_rwr"), by=0.0),
                dict(metric="reward", increasing=("dpo", "on_policy_dpo"), by=0.0),
                dict(metric="reward", increasing=("ppo_once", "ppo"), by=0.0),
            ),
            smoke=dict(seeds=(0, 1, 2), settings=dict(rounds=10)),
        )
    )
