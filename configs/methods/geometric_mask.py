"""Completions within a band of the sampler, OpenRLHF's sequence mask: OpenRLHF 0.11, 2026.

    l = w 1[.5 <= exp(mean_t log w) <= 5] max(-A r, -A clip(r, 1 - .2, 1 + .2)),   w = exp(old_logp - behavior_logp)

Departs from GRPO: tokens weigh by trainer against sampler, and a completion whose geometric mean of them lies outside
the band is left out as a whole.

The sampler of experiments.grpo has the newest weights: w is 1 up to numerics, unless top-k, top-p or an engine
without sync makes a difference.

    python -m experiments.grpo --config=configs/methods/geometric_mask.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("geometric_mask", arg)
    config.algorithm.behavior_weight = dict(fn="geometric_mask")
    return config
