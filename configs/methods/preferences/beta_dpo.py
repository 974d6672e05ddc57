"""beta-DPO: arXiv 2407.08639.

    beta_b = beta (1 + a (mean of the kept margins - mu)),  mu, sd: moving averages of the batches' margins
    loss   = -log sigma(beta_b (u_w - u_l)) over the kept pairs

Departs from DPO: beta follows the margins of the batch, and a fifth of its pairs is dropped, those far from mu
likeliest. a .6.

    python -m experiments.dpo --config=configs/methods/preferences/beta_dpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo(
        "beta_dpo",
        arg,
        scale=dict(fn="batch_adapted"),
        weight=dict(fn="kept"),
        batch_stats=dict(fn="beta_statistics", adaptation=0.6, dropped=0.2),
    )
