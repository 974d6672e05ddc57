"""MoDoMoDo: arXiv 2505.24871. A mixture of sources whose weights come from a quadratic fitted to earlier runs.

    score(w) = w^T Q w over mixtures w;   w* = argmax on the simplex

This config is one run with equal weights. Runs with others, and the fit, are `experiments.tools.mixture`; its last line
is the argument of the next run. Sources are the levels of SAT.

    python -m experiments.grpo --config=configs/prompts/modomodo.py
    python -m experiments.tools.mixture RUN RUN ...

Arguments: `smoke`.
"""

from configs.prompts import _start


def get_config(arg: str | None = None):
    config = _start.grpo("modomodo", arg, "sat")
    weights = {"sat_{}_{}_{}".format(*level): 1.0 for level in config.task.levels}
    config.sample.prompts = dict(fn="mixture", column="source", weights=weights)
    return config
