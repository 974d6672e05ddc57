"""HyPO, hybrid preference optimization: arXiv 2406.01462.

    y ~ pi
    loss = -log sigma(beta (u_w - u_l)) + lambda sg(u(y)) logp(y)

Departs from DPO: the KL to the reference on own samples, by its policy gradient, beside the given pairs, since DPO
holds the policy near the reference only where there are data. lambda 1e-4.

    python -m experiments.online_dpo --config=configs/methods/preferences/hypo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    config = _start.hybrid("hypo", arg, responses=3, compare=dict(fn="first_pair"))
    config.algorithm.regularizer = dict(fn="online_kl")
    config.algorithm.regularizer_coef = 1e-4
    return config
