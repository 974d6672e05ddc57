"""Iterative reasoning preference optimization: arXiv 2404.19733.

    loss = -log sigma(beta (u_w - u_l)) - alpha logp(y_w) / |y_w|

Departs from DPO: right against wrong answers of its own, the best and the worst of 8, each step against the policy
that sampled; and the likelihood of the right one, a mean over its tokens, with alpha 1. Published in 4 long
iterations of 30 samples.

    python -m experiments.online_dpo --config=configs/methods/preferences/iterative_rpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.online_dpo(
        "iterative_rpo",
        arg,
        online=dict(group_size=8, pair_selection=dict(fn="best_worst")),
        reference=dict(prev=1.0),
        regularizer=dict(fn="chosen_nll", reduce="mean"),
        regularizer_coef=1.0,
    )
