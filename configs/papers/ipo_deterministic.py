"""Identity preference optimization (arXiv 2310.12036): where preferences are deterministic DPO forgets its reference.

    python -m experiments.ablation ipo_deterministic

A pair that is always ordered the same way pulls DPO's margin towards infinity whatever beta is; IPO's has the finite
optimum 1 / (2 tau).
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """margin: mean log-ratio of the chosen less that of the rejected response; growth: in its last 9 tenths."""
    return ConfigDict(
        dict(
            paper="arXiv 2310.12036",
            claim="with deterministic preferences DPO's margin grows without end and IPO's stops at 1 / (2 tau) = 5",
            scaled_down="16 prompts of 4 actions, a policy linear in 32 random features; the paper has 3 actions",
            study="deterministic_preferences",
            settings=dict(
                arms={
                    "dpo": dict(beta=0.1),
                    "ipo": dict(beta=1.0, link=dict(fn="square", target=5.0)),
                },
                pairs=16,
                actions=4,
                features=32,
                learning_rate=1.0,
                steps=20_000,
            ),
            seeds=tuple(range(20)),
            tried=1,
            metric="margin",
            expected=(
                dict(metric="margin", arm="ipo", at_least=4.99, at_most=5.01),
                dict(metric="growth", arm="ipo", at_least=-0.05, at_most=0.05),
                dict(metric="growth", arm="dpo", at_least=5.0),
                dict(metric="margin", increasing=("ipo", "dpo"), by=10.0),
            ),
            smoke=dict(seeds=(0, 1, 2), settings=dict(steps=400)),
        )
    )
