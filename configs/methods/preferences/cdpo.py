"""cDPO, conservative DPO: Mitchell 2023, a note on DPO with noisy preferences; arXiv 2305.18290.

    x    = beta (u_w - u_l)
    loss = -(1 - eps) log sigma(x) - eps log sigma(-x)

Departs from DPO: labels are smoothed by eps, the share that is taken to be wrong: the margin has an optimum, log((1 -
eps) / eps).

    python -m experiments.dpo --config=configs/methods/preferences/cdpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("cdpo", arg, link=dict(fn="logistic", label_smoothing=0.1))
