"""GMPO, geometric-mean policy optimization: arXiv 2507.20673.

    q_it = min(logp - old_logp, .4) where A > 0, max(logp - old_logp, -.4) elsewhere
    loss = 1/B sum_i -A_i exp(1/n_i sum_t q_it)

Departs from GRPO: the geometric mean of a row's ratios in place of the arithmetic one, each token clipped in logs and
wider; no KL.

    python -m experiments.grpo --config=configs/methods/gmpo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("gmpo", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.surrogate = dict(fn="gmpo")
    return config
