"""DPO-Positive, Smaug: arXiv 2402.13228.

    loss = -log sigma(beta (u_w - u_l - lambda max(0, -u_w)))

Departs from DPO: a punishment where the chosen response has become less likely than under the reference. lambda 50,
beta .3.

    python -m experiments.dpo --config=configs/methods/preferences/dpop.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("dpop", arg, beta=0.3, score_map=dict(fn="positive", penalty=50.0))
