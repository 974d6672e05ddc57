"""MIS, masked importance sampling of the sampler: Liu et al., 2025 ("When Speed Kills Stability").

    l = w 1[w <= 2] max(-A r, -A clip(r, 1 - .2, 1 + .2)),   w = exp(old_logp - behavior_logp)

Departs from GRPO: tokens weigh by trainer against sampler, and those above 2 are left out instead of cut off at 2.

The sampler of experiments.grpo has the newest weights: w is 1 up to numerics, unless top-k, top-p or an engine
without sync makes a difference.

    python -m experiments.grpo --config=configs/methods/mis.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("mis", arg)
    config.algorithm.behavior_weight = dict(fn="masked")
    return config
