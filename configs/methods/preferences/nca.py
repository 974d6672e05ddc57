"""NCA, noise contrastive alignment, of pairs: arXiv 2402.05369.

    r    = beta u
    loss = -log sigma(r_w) - (log sigma(-r_w) + log sigma(-r_l)) / 2

Departs from DPO: absolute rewards and not their difference: the chosen response keeps its likelihood, at its optimum
r_w = log 2.

    python -m experiments.dpo --config=configs/methods/preferences/nca.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("nca", arg, beta=0.01, compare=dict(fn="nca"))
