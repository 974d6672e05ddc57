"""CPL with a reference: arXiv 2310.13639.

    loss = -log sigma(alpha (u_w - lambda u_l))

Departs from DPO: the worse side counts for less. alpha .2, lambda .75.

    python -m experiments.dpo --config=configs/methods/preferences/cpl_kl.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("cpl_kl", arg, beta=0.2, score_map=dict(fn="biased", bias=0.75))
