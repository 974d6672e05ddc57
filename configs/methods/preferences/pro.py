"""PRO, preference ranking optimization: arXiv 2306.17492.

    s    = mean_t logp_t,  T_kj = R_k - R_j,  T_kk = max_j T_kj
    loss = sum_k (log sum_{j >= k} exp(T_kj s_j) - T_kk s_k) - .05 (K - 1)^2 logp(y_1)

Departs from DPO: no reference: each response of a ranking against all worse ones, with reward gaps as temperatures,
and the likelihood of the best, whose weight follows K, algorithm.responses.

    python -m experiments.dpo --config=configs/methods/preferences/pro.py
"""

from ml_collections import FieldReference

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    count = FieldReference(4)
    slots = dict(reference={}, length_power=1.0, beta=1.0, compare=dict(fn="pro"))
    return _start.dpo("pro", arg, responses=count, regularizer_coef=0.05 * (count.to_float() - 1.0) ** 2, **slots)
