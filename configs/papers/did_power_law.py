"""Differential information (arXiv 2505.23761): DPO learns the target where rejected responses follow a power law.

    python -m experiments.ablation did_power_law

With chosen ~ p_w and rejected ~ p_l DPO's optimum is ref (p_w / p_l)^(1 / beta), which is the target pi* just where p_l
is proportional to p_w (ref / pi*)^beta.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """kl: of the trained policy to the target."""
    return ConfigDict(
        dict(
            paper="arXiv 2505.23761",
            claim="DPO recovers the target policy if rejected responses follow the power law, and not if they do not",
            scaled_down="a bandit of 8 actions in place of energy-based models and instruction following",
            study="power_law",
            settings=dict(
                arms={"power_law": "power_law", "reference": "reference", "uniform": "uniform"},
                slots=dict(beta=1.0),
                actions=8,
                pairs=4000,
                beta=1.0,
                learning_rate=0.05,
                steps=400,
            ),
            seeds=tuple(range(20)),
            tried=1,
            metric="kl",
            expected=(
                dict(metric="kl", arm="power_law", at_most=0.02),
                dict(metric="kl", increasing=("power_law", "reference"), by=0.0),
                dict(metric="kl", increasing=("power_law", "uniform"), by=0.0),
            ),
            smoke=dict(seeds=(0, 1, 2), settings=dict(pairs=400, steps=60)),
        )
    )
