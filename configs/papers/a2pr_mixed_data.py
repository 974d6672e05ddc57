"""A2PR (arXiv 2405.19909): regularising towards good actions only beats TD3+BC's cloning of all of them.

    python -m experiments.ablation a2pr_mixed_data

Data of mixed quality: a tenth of the rows is the expert's, six tenths are random.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """score: of the last evaluation, 0 for random play and 100 for the expert."""
    fields = dict(train=dict(total_steps=2000 * 128))
    return ConfigDict(
        dict(
            paper="arXiv 2405.19909",
            claim="on data of mixed quality A2PR ends with a higher score than TD3+BC",
            scaled_down="a point mass with scripted data in place of D4RL; two layers of 64",
            study="trained_in_worlds",
            settings=dict(
                arms={arm: dict(config=f"offline:pointmass,{arm}", fields=fields) for arm in ("td3_bc", "a2pr")},
                metrics=dict(score="eval/normalized"),
                points=1,
            ),
            seeds=tuple(range(10)),
            metric="score",
            expected=(dict(metric="score", increasing=("td3_bc", "a2pr"), by=0.0),),
            tried=1,
            smoke=dict(
                seeds=(0, 1),
                settings=dict(
                    arms={
                        arm: dict(config=f"offline:smoke,pointmass,{arm}", fields=dict(train=dict(total_steps=64)))
                        for arm in ("td3_bc", "a2pr")
                    }
                ),
            ),
        )
    )
