"""rDPO, provably robust DPO: arXiv 2403.00409.

    x    = beta (u_w - u_l)
    loss = (-(1 - eps) log sigma(x) + eps log sigma(-x)) / (1 - 2 eps)

Departs from DPO: a loss whose mean under labels flipped at rate eps is DPO's under true ones. It has no lower bound:
stop early.

    python -m experiments.dpo --config=configs/methods/preferences/rdpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("rdpo", arg, link=dict(fn="robust", flip_rate=0.1))
