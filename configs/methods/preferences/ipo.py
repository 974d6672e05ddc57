"""IPO, identity preference optimization: arXiv 2310.12036.

    loss = (u_w - u_l - 1 / (2 tau))^2

Departs from DPO: a squared distance to a margin in place of the logistic link, so that preferences without noise do
not drive the margin to infinity. tau .1, sums over tokens, as in the equation; ipo_average has means.

    python -m experiments.dpo --config=configs/methods/preferences/ipo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("ipo", arg, beta=1.0, link=dict(fn="square", target=5.0))
