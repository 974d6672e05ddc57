"""DPPO-KL, a trust region in the KL of two outcomes: arXiv 2602.04879.

    D = p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p)),   p = exp(logp)
    l = -sg(min(r, 20) M) A logp,   M = 0 where D > .05 and p has moved the way that A pushes it, else 1

Departs from GRPO: the bound is on the divergence of (this token, any other) and not on the ratio; a mean over all
tokens, no KL to the reference.

    python -m experiments.grpo --config=configs/methods/dppo_kl.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("dppo_kl", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.surrogate = dict(fn="dppo_kl")
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
