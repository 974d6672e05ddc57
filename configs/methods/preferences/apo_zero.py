"""APO-zero, anchored preference optimization: arXiv 2408.06266 eq. 7.

    r    = beta u
    loss = 1 - sigma(r_w) + sigma(r_l)

Departs from DPO: each side against 0: the chosen one rises, the rejected one falls, and both pulls fade. For data
better than the model.

    python -m experiments.dpo --config=configs/methods/preferences/apo_zero.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("apo_zero", arg, compare=dict(fn="anchored", anchor=0.0), link=dict(fn="saturating"))
