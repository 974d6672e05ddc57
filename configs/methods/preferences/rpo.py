"""RPO, regularized preference optimization: arXiv 2405.16436.

    loss = -log sigma(beta (u_w - u_l)) - eta logp(y_w)

Departs from DPO: the likelihood of the chosen response, a sum over its tokens, against overoptimization. eta .005,
beta .01.

    python -m experiments.dpo --config=configs/methods/preferences/rpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("rpo", arg, beta=0.01, regularizer=dict(fn="chosen_nll"), regularizer_coef=0.005)
