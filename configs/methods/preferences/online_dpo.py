"""Online DPO, OAIF: arXiv 2402.04792.

    y_1, y_2 ~ pi
    loss = -log sigma(beta (u_w - u_l))

Departs from DPO: two samples of the policy, judged at once, in place of given pairs.

    python -m experiments.online_dpo --config=configs/methods/preferences/online_dpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.online_dpo("online_dpo", arg, online={})
