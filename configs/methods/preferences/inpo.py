"""INPO, iterative Nash policy optimization: arXiv 2407.00617.

    h    = log pi(y) - (tau / eta) log ref(y) - (1 - tau / eta) log pi_t(y)
    loss = (h_w - h_l - 1 / (2 eta))^2

Departs from DPO: own samples, the best and the worst of 8, compared with the reference and with the policy that
sampled them; a squared link. eta .0075, tau / eta 1/3.

    python -m experiments.online_dpo --config=configs/methods/preferences/inpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.online_dpo(
        "inpo",
        arg,
        online=dict(group_size=8, pair_selection=dict(fn="best_worst")),
        reference=dict(ref=1 / 3, prev=2 / 3),
        beta=1.0,
        link=dict(fn="square", target=1 / (2 * 0.0075)),
    )
