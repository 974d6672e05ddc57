"""IQL (arXiv 2110.06169): advantages of in-sample values find the good actions of mixed data; cloning takes all.

    python -m experiments.ablation iql_mixed_data

The data of a2pr_mixed_data.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """score: of the last evaluation, 0 for random play and 100 for the expert."""
    fields = dict(train=dict(total_steps=2000 * 128))
    return ConfigDict(
        dict(
            paper="arXiv 2110.06169",
            claim="on data of mixed quality IQL ends with a higher score than behaviour cloning",
            scaled_down="a point mass with scripted data in place of D4RL; two layers of 64",
            study="trained_in_worlds",
            settings=dict(
                arms={arm: dict(config=f"offline:pointmass,{arm}", fields=fields) for arm in ("bc", "iql")},
                metrics=dict(score="eval/normalized"),
                points=1,
            ),
            seeds=tuple(range(10)),
            metric="score",
            expected=(dict(metric="score", increasing=("bc", "iql"), by=10.0),),
            tried=1,
            smoke=dict(
                seeds=(0, 1),
                settings=dict(
                    arms={
                        arm: dict(config=f"offline:smoke,pointmass,{arm}", fields=dict(train=dict(total_steps=64)))
                        for arm in ("bc", "iql")
                    }
                ),
            ),
        )
    )
