"""RPO (arXiv 2405.16436): the likelihood of chosen answers keeps DPO from going where no pair has been.

    python -m experiments.ablation rpo_coverage

24 pairs of a third of 48 actions; a policy of 8 features generalises to the others. eta is half of beta, as published.
Not reproduced: DPO lowers log pi of the chosen by 18.6 and RPO by .5, as claimed, but DPO's reward is .6 higher: true
rewards are linear in the same features, so that going beyond the data is mostly right.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """reward: E[r] above the reference's. chosen: growth of log pi of the chosen answers. covered: of the covered."""
    return ConfigDict(
        dict(
            paper="arXiv 2405.16436",
            claim="DPO lowers the likelihood of chosen answers and loses reward where RPO's SFT term keeps both",
            scaled_down="a bandit of 48 actions with linear rewards and policy; the paper has Zephyr-7B and Gemma-2B",
            study="partial_coverage",
            settings=dict(
                arms={"dpo": dict(), "rpo": dict(regularizer="chosen_nll", regularizer_coef=0.05)},
                actions=48,
                covered=16,
                features=8,
                pairs=24,
                beta=0.1,
                learning_rate=0.05,
                steps=600,
            ),
            seeds=tuple(range(20)),
            metric="reward",
            expected=(
                dict(metric="chosen", arm="dpo", at_most=0.0),
                dict(metric="chosen", increasing=("dpo", "rpo"), by=0.0),
                dict(metric="reward", increasing=("dpo", "rpo"), by=0.0),
            ),
            tried=2,  # first, a key was used twice
            smoke=dict(seeds=(0, 1), settings=dict(steps=30)),
        )
    )
