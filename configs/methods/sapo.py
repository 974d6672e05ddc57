"""SAPO, soft adaptive policy optimization: arXiv 2511.20347.

    l = -A (4 / tau) sigmoid(tau (r - 1)),   tau = 1 where A > 0, 1.05 elsewhere

Departs from GRPO: a sigmoid in place of the clip, so that the gradient fades with the ratio and never stops; it fades
faster where A < 0. No KL.

    python -m experiments.grpo --config=configs/methods/sapo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("sapo", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.surrogate = dict(fn="sapo")
    return config
