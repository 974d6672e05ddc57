"""Prompts of success one half teach more than any prompts, at as many samples: the premise of PCL and SPO.

    python -m experiments.ablation success_half

E sum A^2 = (G - 1) p (1 - p) is highest at p = .5 (arXiv 2510.01135). Here: 3-SAT of six levels, from nearly always to
hardly ever solved; one arm draws the levels uniformly, the other one by 4 p (1 - p) of their measured success. The same
with a transformer: configs/tasks/sat.py:few beside configs/tasks/sat.py:few,half.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """all: the probability of a satisfying sample at the end, mean over the levels; hardest: on the last level."""
    return ConfigDict(
        dict(
            paper="arXiv 2510.01135",
            claim="prompts drawn by p (1 - p) of their success teach more than any prompts at as many samples",
            scaled_down="8 variables, 2 to 64 clauses, a network of 1,000 weights; success counted, not predicted",
            study="sat_levels",
            settings=dict(
                arms={
                    "uniform": dict(fn="uniform"),
                    "half": dict(fn="by_success", column="level", floor=0.05, decay=0.9),
                },
                variables=8,
                clauses=(2, 4, 8, 16, 32, 64),
                recipe=dict(groups=16, group_size=8, steps=300, learning_rate=0.01),
            ),
            seeds=tuple(range(10)),
            metric="all",
            expected=(dict(metric="all", increasing=("uniform", "half"), by=0.0),),
            tried=2,  # also 60 steps of both claims' arms on 5 to 40 clauses, 2 seeds
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
