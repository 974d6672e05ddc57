"""IcePop, a band for the sampler's weights, Ring-1T: arXiv 2510.18855.

    l = w 1[.5 <= w <= 5] max(-A r, -A clip(r, 1 - .2, 1 + .2)),   w = exp(old_logp - behavior_logp)

Departs from GRPO: tokens weigh by trainer against sampler, and those outside the band are left out, on both sides.

The sampler of experiments.grpo has the newest weights: w is 1 up to numerics, unless top-k, top-p or an engine
without sync makes a difference.

    python -m experiments.grpo --config=configs/methods/icepop.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("icepop", arg)
    config.algorithm.behavior_weight = dict(fn="icepop")
    return config
