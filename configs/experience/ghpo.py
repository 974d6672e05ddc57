"""GHPO, adaptive guidance: arXiv 2507.10628. Where all G answers are wrong, the prompt gets a part of its solution.

    if max_i R_i <= 0:  for h in (1/4, 1/2, 3/4):  y_1..y_G ~ pi(. | x, h);  the first h with max_i R_i > 0 is taken

Departs from GRPO: such a group is the hinted prompt's, and all of its rows are on-policy there. Prefixes are cut in
tokens (in characters in the paper's code) and begin the answer, so that the reward sees both; hkgc-1/GHPO adds them to
the user's message, and the model answers in full (--config.foreign.hints.style=advice). The reward is the task's; the
paper adds .5 for the format.

    python -m experiments.grpo --config=configs/experience/ghpo.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("ghpo", arg, longer=_start.length(arg))
    config.algorithm.advantage = dict(fn="group_relative", ddof=1, eps=1e-4)
    config.foreign.hints = dict(
        fn="hints", at_most=0, replace="group", levels=(0.25, 0.5, 0.75), train_on="hinted", style="prefix"
    )
    return config
