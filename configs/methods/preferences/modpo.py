"""MODPO, multi-objective DPO: arXiv 2310.03708.

    loss = -log sigma((beta (u_w - u_l) - (R(y_w) - R(y_l))) / w),  R = sum of the other objectives, weighted

Departs from DPO: preferences of one objective, w .8, and the rewards of the others as a margin: other_rewards of the
records, else what brevity says, here .05 a token with the weight 1 - w. All of them follow algorithm.scale.weight, w.

    python -m experiments.dpo --config=configs/methods/preferences/modpo.py
"""

from ml_collections import FieldReference

from configs import sweeps
from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    w = FieldReference(0.8)
    slots = dict(scale=dict(fn="objective_share", weight=w), offset=dict(fn="other_objectives", weight=w))
    return _start.dpo("modpo", arg, brevity=0.05 * (1.0 - w), **slots)


def sweep_weight(arg: str | None = None):
    """w."""
    return sweeps.grid("algorithm.scale.weight", sweeps.numbers(arg, (0.2, 0.5, 0.8)))
