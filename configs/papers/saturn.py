"""Easy to hard beats hard only on 3-SAT: SATURN, arXiv 2505.16368.

    python -m experiments.ablation saturn

The paper: Qwen2.5 on formulas that grow step by step. Here: a small policy that passes messages between clauses and
variables, as many samples in both arms, measured on held-out formulas of the hardest level, which only one arm sees
from its first step. The same with a transformer: configs/prompts/saturn.py beside configs/tasks/sat.py:hard.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """hardest: the probability of a satisfying sample on the hardest level, at the end; all: the mean over levels."""
    return ConfigDict(
        dict(
            paper="arXiv 2505.16368",
            claim="at as many samples, formulas from easy to hard teach the hard ones better than hard ones alone",
            scaled_down="8 variables, 5 to 40 clauses, a network of 1,000 weights; Qwen2.5 on formulas in text",
            study="sat_levels",
            settings=dict(
                arms={
                    "hard": dict(fn="mixture", column="level", weights={"3": 1.0}),
                    "easy_to_hard": dict(fn="promoted", column="difficulty", threshold=0.75, patience=4),
                },
                variables=8,
                clauses=(5, 10, 20, 40),
                recipe=dict(groups=16, group_size=8, steps=300, learning_rate=0.01),
            ),
            seeds=tuple(range(10)),
            metric="hardest",
            expected=(dict(metric="hardest", increasing=("hard", "easy_to_hard"), by=0.0),),
            tried=2,  # also 60 steps of both claims' arms on 5 to 40 clauses, 2 seeds
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
