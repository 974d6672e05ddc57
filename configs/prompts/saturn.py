"""SATURN: arXiv 2505.16368. SAT formulas from easy to hard, the next level once this one is mastered.

    D(n, k, l) = log2 k + 2 log2 l - n + k / n;   level + 1 when the mean success of 4 steps reaches .75

The paper promotes by pass@k on validation formulas of the level; here by the success of the samples that are trained
on (our reading of a threshold that we do not know).

    python -m experiments.grpo --config=configs/prompts/saturn.py

Arguments: `smoke`.
"""

from configs.prompts import _start


def get_config(arg: str | None = None):
    config = _start.grpo("saturn", arg, "sat")
    config.sample.prompts = dict(fn="promoted", column="difficulty", threshold=0.75, patience=4)
    return config
