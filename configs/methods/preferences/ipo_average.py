"""IPO with means over tokens: arXiv 2310.12036, as in TRL and HALOs.

    loss = (u_w / |y_w| - u_l / |y_l| - 1 / (2 tau))^2

Departs from DPO: the link of IPO, and each score a mean over its tokens, which TRL says the authors of IPO have
confirmed.

    python -m experiments.dpo --config=configs/methods/preferences/ipo_average.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("ipo_average", arg, beta=1.0, length_power=1.0, link=dict(fn="square", target=5.0))
