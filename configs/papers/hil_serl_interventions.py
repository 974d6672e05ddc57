"""HIL-SERL (arXiv 2410.21845): somebody who intervenes, beside the same demonstrations without interventions.

    python -m experiments.ablation hil_serl_interventions

Both arms have the reward, the demonstrations and the learner of hil_serl; in `shown` nobody takes over, since no motion
away from the goal is above that margin.
"""

from ml_collections import ConfigDict

ALONE = dict(algorithm=dict(intervention=dict(margin=1e9)))
SMOKE = dict(config="replay:smoke,docking,hil_serl")


def get_ablation() -> ConfigDict:
    """docked: the return of the policy alone at the end; mean_docked: its mean over the training."""
    fields = dict(train=dict(total_steps=8_000))
    small = dict(train=dict(total_steps=1024))
    return ConfigDict(
        dict(
            paper="arXiv 2410.21845",
            claim="with interventions the return over the training is higher than from the demonstrations alone",
            scaled_down="docking of a point in place of robots; a scripted controller in place of a person",
            study="trained_in_worlds",
            settings=dict(
                arms={
                    "shown": dict(config="replay:docking,hil_serl", fields=fields | ALONE),
                    "helped": dict(config="replay:docking,hil_serl", fields=fields),
                },
                metrics=dict(docked="eval/return"),
                points=10,
            ),
            seeds=tuple(range(10, 20)),
            metric="mean_docked",
            expected=(dict(metric="mean_docked", increasing=("shown", "helped"), by=0.0),),
            tried=2,
            smoke=dict(
                seeds=(0, 1),
                settings=dict(
                    points=1, arms=dict(shown=SMOKE | dict(fields=small | ALONE), helped=SMOKE | dict(fields=small))
                ),
            ),
        )
    )
