"""Dual-clip PPO: arXiv 1912.09729.

    l = min( max(-A r, -A clip(r, 1 - .2, 1 + .2)), -3 A )  where A < 0;  PPO's clip elsewhere

Departs from GRPO: where A < 0, a token whose ratio is above 3 has no gradient. PPO's own clip leaves that side open.

    python -m experiments.grpo --config=configs/methods/dual_clip.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("dual_clip", arg)
    config.algorithm.surrogate = dict(fn="dual_clip")
    return config
