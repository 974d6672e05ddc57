"""ODPO, DPO with an offset: arXiv 2402.10571.

    loss = -log sigma(beta (u_w - u_l) - alpha log(R_w - R_l))

Departs from DPO: the chosen response has to win by a margin that grows with what the rewards say. alpha 1. R is
the grade of generated responses; of pairs that are only ordered 1 and 0, and it is DPO.

    python -m experiments.dpo --config=configs/methods/preferences/odpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("odpo", arg, offset=dict(fn="log_reward_gap", alpha=1.0))
