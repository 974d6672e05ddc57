"""DPO with soft labels: Secrets of RLHF II, arXiv 2401.06080.

    p    = share of annotators who prefer the chosen response
    loss = -p log sigma(beta (u_w - u_l)) - (1 - p) log sigma(beta (u_l - u_w))

Departs from DPO: the label is a probability, where the data have one (`pandalm`); elsewhere it is 1.

    python -m experiments.dpo --config=configs/methods/preferences/soft_dpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("soft_dpo", arg, link=dict(fn="soft_label"))
