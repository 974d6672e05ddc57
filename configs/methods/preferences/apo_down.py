"""APO-down: arXiv 2408.06266 eq. 8.

    r    = beta u
    loss = sigma(r_w) + 1 - sigma(r_w - r_l)

Departs from DPO: the chosen one falls towards the reference, the rejected one falls further. For data worse than the
model.

    python -m experiments.dpo --config=configs/methods/preferences/apo_down.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("apo_down", arg, compare=dict(fn="apo_down"), link=dict(fn="saturating"))
