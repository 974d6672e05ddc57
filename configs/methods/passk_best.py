"""Pass@k by the best of the group, verl's grpo_passk: arXiv 2503.19595.

    A_i = (R_max - R_second) / (std_g + 1e-6) for the best answer of the group, 0 for the others

Departs from GRPO: only an answer that is better than all others is learned from, so with rewards of 0 and 1 only the
one right answer of a group; nothing is unlearnt.

    python -m experiments.grpo --config=configs/methods/passk_best.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("passk_best", arg)
    config.algorithm.advantage = dict(fn="best_of_group")
    return config
