"""CoPG, contrastive policy gradient: arXiv 2406.19185.

    r    = R - beta / 2 u
    loss = -mean over pairs of (r_i - r_j) (u_i - u_j)

Departs from DPO: rewards and not preferences, off policy without importance weights: each response is the baseline of
the others.

    python -m experiments.dpo --config=configs/methods/preferences/copg.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("copg", arg, responses=4, compare=dict(fn="contrastive_policy_gradient"))
