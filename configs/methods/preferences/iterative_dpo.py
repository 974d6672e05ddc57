"""Iterative DPO, RLHF workflow: arXiv 2405.07863.

    y_1 .. y_8 ~ pi_t
    loss = -(1 - eps) log sigma(beta (u_w - u_l)) - eps log sigma(beta (u_l - u_w))

Departs from DPO: the best and the worst of 8 own samples, smoothed labels, and a reference that becomes the policy
every 10 steps. eps .1.

    python -m experiments.online_dpo --config=configs/methods/preferences/iterative_dpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.online_dpo(
        "iterative_dpo",
        arg,
        online=dict(
            group_size=8, pair_selection=dict(fn="best_worst"), reference_schedule=dict(fn="per_iteration", every=10)
        ),
        link=dict(fn="logistic", label_smoothing=0.1),
    )
