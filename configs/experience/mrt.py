"""MRT, meta reinforcement fine-tuning: arXiv 2503.07572. An answer is paid for its progress since a random moment.

    A = R - R_cut,   R_cut: the reward if the answer is forced after its first m tokens, m ~ U{0, ..., n - 1}

Departs from GRPO: the baseline is the answer's own, not the group's; no std, no KL. This is the released form
(CMU-AIRe/MRT); the paper adds alpha times the progress of each episode to R (outcome=1; its alpha is not confirmed).
The tasks here have no thinking to end: the answer just goes on (force=""). The metric foreign/mrt/regret is the mean of
1 - R_cut, the cumulative regret per token.

    python -m experiments.grpo --config=configs/experience/mrt.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("mrt", arg, longer=_start.length(arg))
    config.algorithm.advantage = dict(fn="no_baseline")
    config.foreign.mrt = dict(
        fn="experiments.parts.foreign_own:progress",
        at_most=config.sample.group_size,
        replace="group",
        outcome=0.0,
        alpha=1.0,
    )
    return config
