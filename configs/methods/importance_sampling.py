"""Importance-sampled policy gradient (CPI), PPO without its clip: arXiv 1707.06347.

    l = -A r,  r = exp(logp - old_logp)

Departs from GRPO: no clip and no KL; whatever the ratio, a token keeps its gradient -A r.

    python -m experiments.grpo --config=configs/methods/importance_sampling.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("importance_sampling", arg)
    config.algorithm.surrogate = dict(fn="importance_sampling")
    config.algorithm.kl_coef = 0.0
    return config
