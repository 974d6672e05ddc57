"""EXO, efficient exact optimization, of pairs: arXiv 2402.00856.

    p    = sigma(beta (u_w - u_l))
    loss = p log(p / (1 - eps)) + (1 - p) log((1 - p) / eps)

Departs from DPO: the other KL: of the policy's probability to the label's, with the optimum of cDPO. eps 1e-3 stands
for a hard label.

    python -m experiments.dpo --config=configs/methods/preferences/exo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("exo", arg, link=dict(fn="exo", label_smoothing=0.001))
