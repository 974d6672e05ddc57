"""SPPO with hard labels: arXiv 2405.00675, sppo_hard of TRL.

    loss = (u_w - 1 / (2 beta))^2 + (u_l + 1 / (2 beta))^2

Departs from DPO: each side is pulled to a score of its own, 500 for beta .001. Given pairs; sppo samples them.

    python -m experiments.dpo --config=configs/methods/preferences/sppo_hard.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo(
        "sppo_hard",
        arg,
        beta=1.0,
        compare=dict(fn="anchored", anchor=0.0),
        link=dict(fn="square", target=500.0),
    )
