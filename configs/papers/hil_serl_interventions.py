"""HIL-SERL (arXiv 2410.21845): with somebody who intervenes, SAC learns an assembly sooner than alone.

python -m experiments.ablation hil_serl_interventions
"""

from ml_collections import ConfigDict

SMOKE = dict(config="replay:smoke,docking,hil_serl", fields=dict(train=dict(total_steps=1024)))


def get_ablation() -> ConfigDict:
    """docked: the return of the policy alone at the end; mean_docked: its mean over the training."""
    fields = dict(train=dict(total_steps=8_000))
    return ConfigDict(
        dict(
            paper="arXiv 2410.21845",
            claim="with interventions the return over the training is higher than of SAC alone",
            scaled_down="docking of a point in place of robots; a scripted controller in place of a person",
            study="trained_in_worlds",
            settings=dict(
                arms={
                    "sac": dict(config="replay:docking,sac", fields=fields),
                    "hil_serl": dict(config="replay:docking,hil_serl", fields=fields),
                },
                metrics=dict(docked="eval/return"),
                points=10,
            ),
            seeds=tuple(range(10)),
            metric="mean_docked",
            expected=(dict(metric="mean_docked", increasing=("sac", "hil_serl"), by=0.0),),
            tried=1,
            smoke=dict(seeds=(0, 1), settings=dict(points=1, arms=dict.fromkeys(("sac", "hil_serl"), SMOKE))),
        )
    )
