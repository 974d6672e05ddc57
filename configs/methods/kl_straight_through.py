"""Straight-through KL, the value of k3 with the gradient of k2, verl's "low_var_kl+": arXiv 2506.09477.

    l = max(-A r, -A clip(r, 1 - .2, 1 + .2)) + .04 ( sg(min(k3, 10)) + k2 - sg(k2) )

Departs from GRPO: what is reported is k3, what is differentiated is (logp - ref_logp)^2 / 2, whose expected gradient is
that of KL(pi || ref).

    python -m experiments.grpo --config=configs/methods/kl_straight_through.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("kl_straight_through", arg)
    config.algorithm.kl = dict(fn="k3_plus")
    return config
