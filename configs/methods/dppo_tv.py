"""DPPO-TV, a trust region in total variation: arXiv 2602.04879.

    l = -sg(min(r, 20) M) A logp,   M = 1[A > 0: p - p_old <= .15;  A < 0: p - p_old >= -.15],   p = exp(logp)

Departs from GRPO: what bounds an update is how far the token's probability has moved and not its ratio, so that rare
tokens may move; a mean over all tokens, no KL.

    python -m experiments.grpo --config=configs/methods/dppo_tv.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("dppo_tv", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.surrogate = dict(fn="dppo_tv")
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
