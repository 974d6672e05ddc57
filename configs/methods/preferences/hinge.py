"""Hinge-norm, SLiC's loss with a reference: arXiv 2309.06657 eq. 10.

    loss = max(0, 1 - gamma (u_w - u_l))

Departs from DPO: a hinge in place of the logistic link, with gamma, .05, in beta's place.

    python -m experiments.dpo --config=configs/methods/preferences/hinge.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("hinge", arg, beta=0.05, link=dict(fn="hinge"))
