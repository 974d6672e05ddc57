"""f-DPO with the Jensen-Shannon divergence: arXiv 2309.16240.

    phi(u) = log 2 + log sigma(u)
    loss   = -log sigma(beta (phi(u_w) - phi(u_l)))

Departs from DPO: regularised by the Jensen-Shannon divergence to the reference: the score is f'(pi / ref).

    python -m experiments.dpo --config=configs/methods/preferences/fdpo_js.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("fdpo_js", arg, score_map=dict(fn="jensen_shannon"))
