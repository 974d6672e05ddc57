"""MODPO, multi-objective DPO: arXiv 2310.03708.

    loss = -log sigma((beta (u_w - u_l) - (R(y_w) - R(y_l))) / w),  R = sum of the other objectives, weighted

Departs from DPO: preferences of one objective, w .8, and the rewards of the others as a margin: other_rewards of the
records, else brevity, .05 (1 - w) a token. All follow --config.algorithm.scale.weight, or --sweep=weight.

    python -m experiments.dpo --config=configs/methods/preferences/modpo.py
"""

from ml_collections import FieldReference

from configs import sweeps
from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    w = FieldReference(0.8)
    scale, offset = dict(fn="objective_share", weight=w), dict(fn="other_objectives", weight=w)
    return _start.dpo("modpo", arg, brevity=0.05 * (1.0 - w), scale=scale, offset=offset)


def sweep_weight(arg: str | None = None):
    """The weight of the objective whose preferences are given."""
    return sweeps.grid("algorithm.scale.weight", sweeps.numbers(arg, (0.2, 0.5, 0.8)))
