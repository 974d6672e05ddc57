"""VESPO, variational sequence-level soft policy optimization: arXiv 2602.10693.

    W_i = exp(sum_t (logp - old_logp))
    l   = -sg(W_i^k exp(lambda (1 - W_i))) A logp,   (k, lambda) = (2, 3) where A >= 0, (3, 2) elsewhere

Departs from GRPO: the weight is a smooth function of the completion's whole ratio, without any bound; a mean over all
tokens, no KL.

    python -m experiments.grpo --config=configs/methods/vespo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("vespo", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.surrogate = dict(fn="vespo")
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
