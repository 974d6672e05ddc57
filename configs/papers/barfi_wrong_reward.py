"""BARFI (arXiv 2310.19007): a designer's wrong auxiliary reward is unlearned, where the sum of rewards keeps to it.

    python -m experiments.ablation barfi_wrong_reward

The auxiliary reward is for being at one place of the square again and again. `sum` is the same actor on r_p + r_aux.
Rates of the policy were tried on other seeds before, .02 (15 of 16 found) and .01.
"""

from ml_collections import ConfigDict

SMOKE = dict(config="rewards:smoke,barfi", fields=dict(train=dict(total_steps=1024)))


def get_ablation() -> ConfigDict:
    """found: the greedy policy's primary return at the end, 1 at best; mean_found: its mean over the training."""
    fields = dict(train=dict(total_steps=51_200))
    return ConfigDict(
        dict(
            paper="arXiv 2310.19007",
            claim="with a wrong auxiliary reward BARFI reaches the goal, the sum of the rewards does not",
            scaled_down="a square of 16 places; a linear reward of the place",
            study="trained_in_worlds",
            settings=dict(
                arms={
                    "sum": dict(
                        config="rewards:barfi", fields=fields | dict(algorithm=dict(updater=dict(outer_rate=0.0)))
                    ),
                    "barfi": dict(config="rewards:barfi", fields=fields),
                },
                metrics=dict(found="eval/return"),
                points=10,
            ),
            seeds=tuple(range(10)),
            metric="found",
            expected=(dict(metric="found", increasing=("sum", "barfi"), by=0.5),),
            tried=3,
            smoke=dict(seeds=(0, 1), settings=dict(points=1, arms=dict.fromkeys(("sum", "barfi"), SMOKE))),
        )
    )
