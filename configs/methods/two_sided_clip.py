"""Two-sided clip, INTELLECT-2: arXiv 2505.07291.

    l = max(-A min(r, delta), -A clip(r, 1 - .2, 1 + .2)),  delta = 4

Departs from GRPO: the ratio is cut off at 4 where A < 0, and the KL weighs .001. The same function as dual_clip with
its constant at 4.

    python -m experiments.grpo --config=configs/methods/two_sided_clip.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("two_sided_clip", arg)
    config.algorithm.surrogate = dict(fn="two_sided_clip")
    config.algorithm.kl_coef = 0.001
    return config
