"""Overlong filtering, DAPO's: arXiv 2503.14476.

    l = 0 on the rows that were cut off at the generation limit; they stay in their group's mean and std

Departs from GRPO: an answer that did not come to its end is neither right nor wrong. DAPO's soft punishment (dapo.py)
is the alternative to it.

    python -m experiments.grpo --config=configs/methods/overlong_filter.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("overlong_filter", arg)
    config.algorithm.mask_truncated = True
    return config
