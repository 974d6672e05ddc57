"""Online IPO: arXiv 2403.08635.

    loss = (u_w - u_l - 1 / (2 tau))^2

Departs from DPO: IPO on two samples of the policy, judged at once: its fixed point is the Nash equilibrium of the
regularised game. tau .1.

    python -m experiments.online_dpo --config=configs/methods/preferences/online_ipo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.online_dpo("online_ipo", arg, online={}, beta=1.0, link=dict(fn="square", target=5.0))
