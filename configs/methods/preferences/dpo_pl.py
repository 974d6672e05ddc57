"""DPO with Plackett-Luce: arXiv 2305.18290, appendix A.3.

    loss = -sum_k (beta u_k - log(exp(beta u_k) + sum_{R_j < R_k} exp(beta u_j)))

Departs from DPO: the likelihood of a whole ranking and not of a pair. Responses of equal reward are not compared.

    python -m experiments.dpo --config=configs/methods/preferences/dpo_pl.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("dpo_pl", arg, responses=4, compare=dict(fn="plackett_luce"))
