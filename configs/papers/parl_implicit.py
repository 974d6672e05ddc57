"""PARL (arXiv 2308.02585): a reward learned from preferences needs the term of the policy that it trains.

    python -m experiments.ablation parl_implicit

A probe of 32 other seeds had .016 more of mean_found with the term (95 %: -.001 to .033).
"""

from ml_collections import ConfigDict

SMOKE = dict(config="rewards:smoke,parl", fields=dict(train=dict(total_steps=1024)))


def get_ablation() -> ConfigDict:
    """found: the greedy policy's return at the end, 1 at best; mean_found: its mean over the training."""
    fields = dict(train=dict(total_steps=51_200))
    return ConfigDict(
        dict(
            paper="arXiv 2308.02585",
            claim="with the policy's term in the reward's gradient the goal is reached sooner than without",
            scaled_down="a square of 16 places; a reward that is a table",
            study="trained_in_worlds",
            settings=dict(
                arms={
                    "without": dict(
                        config="rewards:parl",
                        fields=fields | dict(algorithm=dict(updater=dict(design=dict(implicit=False)))),
                    ),
                    "with": dict(config="rewards:parl", fields=fields),
                },
                metrics=dict(found="eval/return"),
                points=10,
            ),
            seeds=tuple(range(10)),
            metric="mean_found",
            expected=(dict(metric="mean_found", increasing=("without", "with"), by=0.0),),
            tried=2,
            smoke=dict(seeds=(0, 1), settings=dict(points=1, arms=dict.fromkeys(("without", "with"), SMOKE))),
        )
    )
