"""Provably robust DPO (arXiv 2403.00409): with a known flip rate it beats DPO, and label smoothing does not.

    python -m experiments.ablation rdpo_label_noise

Conservative DPO smooths the labels with the same flip rate, which pulls the policy towards the reference and away from
the optimum; the robust loss is unbiased (its mean over the flips is the loss of the true labels).
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """kl: of the trained policy to the optimum under the true rewards."""
    return ConfigDict(
        dict(
            paper="arXiv 2403.00409",
            claim="under 30 % flipped labels rDPO ends nearer to the optimum than DPO, and DPO nearer than cDPO",
            scaled_down="a bandit of 8 actions and 4000 pairs in place of GPT-2 on IMDb and Llama-2 on HH",
            study="label_noise",
            settings=dict(
                arms={
                    "rdpo": dict(link=dict(fn="robust", flip_rate=0.3)),
                    "dpo": dict(link="logistic"),
                    "cdpo": dict(link=dict(fn="logistic", label_smoothing=0.3)),
                },
                actions=8,
                pairs=4000,
                flip_rate=0.3,
                beta=0.5,
                learning_rate=0.05,
                steps=600,
            ),
            seeds=tuple(range(20)),
            tried=1,
            metric="kl",
            expected=(dict(metric="kl", increasing=("rdpo", "dpo", "cdpo"), by=0.0),),
            smoke=dict(seeds=(0, 1, 2), settings=dict(pairs=500, steps=60)),
        )
    )
