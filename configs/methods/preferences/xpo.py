"""XPO, exploratory preference optimization: arXiv 2405.21046.

    y_1 ~ pi,  y_2 ~ ref
    loss = -log sigma(beta (u_w - u_l)) + alpha logp(y_2)

Departs from DPO: one sample of the policy and one of the reference, judged at once; a bonus for going away from what
the reference says. alpha 1e-5.

    python -m experiments.online_dpo --config=configs/methods/preferences/xpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.online_dpo(
        "xpo",
        arg,
        online=dict(group_size=1, opponents=dict(samples=1, share=1.0, candidates=True)),
        regularizer=dict(fn="optimism"),
        regularizer_coef=1e-05,
    )
