"""MO-DT (arXiv 2308.16379): a decision transformer that predicts states and returns, too, acts better.

    python -m experiments.ablation mo_dt_objectives

500 updates of 64 windows of 5 steps, a transformer of width 32, two layers; MGDA weighs the objectives.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """score: of the last evaluation, 0 for random play and 100 for the expert."""
    fields = dict(train=dict(total_steps=32_000, batch_size=64), sequence=dict(width=32, context=5))
    return ConfigDict(
        dict(
            paper="arXiv 2308.16379",
            claim="with the objectives of states and returns the score is higher than of actions alone",
            scaled_down="a point mass with scripted data in place of D4RL",
            study="trained_in_worlds",
            settings=dict(
                arms={arm: dict(config=f"offline:pointmass,{arm}", fields=fields) for arm in ("dt", "mo_dt")},
                metrics=dict(score="eval/normalized"),
                points=1,
            ),
            seeds=tuple(range(10)),
            metric="score",
            expected=(dict(metric="score", increasing=("dt", "mo_dt"), by=0.0),),
            tried=1,
            smoke=dict(
                seeds=(0, 1),
                settings=dict(
                    arms={
                        arm: dict(config=f"offline:smoke,pointmass,{arm}", fields=dict(train=dict(total_steps=64)))
                        for arm in ("dt", "mo_dt")
                    }
                ),
            ),
        )
    )
