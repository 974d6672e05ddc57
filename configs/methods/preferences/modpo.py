"""MODPO, multi-objective DPO: arXiv 2310.03708.

    loss = -log sigma((beta (u_w - u_l) - (R(y_w) - R(y_l))) / w),  R = sum of the other objectives, weighted

Departs from DPO: preferences of one objective, w .8, and the rewards of the others as a margin: other_rewards of the
records, else what brevity says, here .05 a token with the weight .2.

    python -m experiments.dpo --config=configs/methods/preferences/modpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo(
        "modpo",
        arg,
        brevity=0.01,
        scale=dict(fn="objective_share", weight=0.8),
        offset=dict(fn="other_objectives", weight=0.8),
    )
