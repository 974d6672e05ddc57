"""M2PO, second-moment trust policy optimization: arXiv 2510.01161.

    l = 0 on the tokens with the largest (old_logp - behavior_logp)^2, as many as it takes for the mean of the rest to
        be < .04; PPO's clip elsewhere

Departs from GRPO: the outliers of stale samples are left out, and only as many as there are too many; no KL.

The sampler of experiments.grpo has the newest weights: behavior_logp is old_logp up to numerics and nothing is left
out, unless top-k, top-p or an engine without sync makes a difference.

    python -m experiments.grpo --config=configs/methods/m2po.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("m2po", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.behavior_weight = dict(fn="m2po")
    return config
