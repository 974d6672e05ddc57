"""RRHF, rank responses from human feedback: arXiv 2304.05302.

    s    = mean_t logp_t
    loss = sum_{R_i > R_j} max(0, s_j - s_i) - mean_t logp_t(y_1)

Departs from DPO: no reference: a hinge without a margin on all pairs of a ranking, and the likelihood of the best
response.

    python -m experiments.dpo --config=configs/methods/preferences/rrhf.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    config = _start.dpo("rrhf", arg, responses=4, reference={}, length_power=1.0, beta=1.0, compare=dict(fn="rrhf"))
    config.algorithm.regularizer = dict(fn="chosen_nll", reduce="mean")
    config.algorithm.regularizer_coef = 1.0
    return config
