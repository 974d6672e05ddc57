"""Eureka (arXiv 2310.12931): a reward that a search has found, beside the hand-written one, on seeds unseen by it.

    python -m experiments.ablation reward_search_unseen

The hand-written weights are those of MuJoCo MPC's residuals (L2R); policies have 40,000 steps, a tenth of the config's.
At 100,000 steps the hand-written reward solves the task itself; looked at on two seeds before, as 40,000 were.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """score: the mean over a search's unseen seeds of the environment's return at the end."""
    return ConfigDict(
        dict(
            paper="arXiv 2310.12931",
            claim="on unseen seeds a searched reward trains better policies than the hand-written one in as many steps",
            scaled_down="weights of three terms by random search in place of code by a language model; Pendulum",
            study="searched_rewards",
            settings=dict(
                arms=dict(hand="written", found="searched"),
                config="rewards:residuals",
                fields=dict(train=dict(total_steps=40_000)),
                generations=3,
                candidates=8,
                tuning=2,
                unseen=5,
            ),
            seeds=tuple(range(10)),
            metric="score",
            expected=(dict(metric="score", increasing=("hand", "found"), by=0.0),),
            tried=3,
            smoke=dict(
                seeds=(0, 1),
                settings=dict(
                    config="rewards:residuals,smoke", fields=dict(), generations=1, candidates=2, tuning=1, unseen=1
                ),
            ),
        )
    )
