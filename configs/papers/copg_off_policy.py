"""CoPG (arXiv 2406.19185): scored answers of another policy are enough for the optimum, without importance weights.

    python -m experiments.ablation copg_off_policy

The paper's bandit: `pg` is the policy gradient of the regularised reward on the same answers as if they were its own,
without a baseline: off policy its fixed point depends on the rewards' level, and the first two tries took 1/2 off.
`dpo` and `ipo` see only which answer of a pair is better, without errors: no noise of labels tells them by how much.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """kl: of the trained policy to the optimum."""
    return ConfigDict(
        dict(
            paper="arXiv 2406.19185",
            claim="CoPG finds the optimum from another policy's answers; the policy gradient, DPO and IPO do not",
            scaled_down="a bandit of 16 actions, as in the paper's section on bandits",
            study="off_policy_rewards",
            settings=dict(
                arms={
                    "copg": dict(compare="contrastive_policy_gradient"),
                    "pg": dict(compare="nash_md", offset=0.5),  # nash_md takes 1/2 off
                    "dpo": dict(),
                    "ipo": dict(beta=1.0, link=dict(fn="square", target=1.0)),
                },
                actions=16,
                pairs=4000,
                skew=1.0,
                beta=0.5,
                learning_rate=0.05,
                steps=1000,
            ),
            seeds=tuple(range(40)),  # of the first ten alone the lead over pg was undecided
            metric="kl",
            expected=(
                dict(metric="kl", arm="copg", at_most=0.02),
                *(dict(metric="kl", increasing=("copg", other), by=0.05) for other in ("pg", "dpo", "ipo")),
            ),
            tried=3,  # ten seeds, forty, and forty with pg's offset
            smoke=dict(seeds=(0, 1), settings=dict(pairs=400, steps=60)),
        )
    )
