"""REBEL, regression to relative rewards: arXiv 2404.16767.

    u    = log pi(y) / pi_t(y)
    loss = (u_1 - u_2 - eta (R_1 - R_2))^2

Departs from DPO: two samples of the policy itself, compared with it, and the difference of their rewards as the
target. eta 1.

    python -m experiments.online_dpo --config=configs/methods/preferences/rebel.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.online_dpo(
        "rebel",
        arg,
        online={},
        reference=dict(prev=1.0),
        beta=1.0,
        offset=dict(fn="reward_gap", eta=1.0),
        link=dict(fn="square", target=0.0),
    )
