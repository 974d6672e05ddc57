"""Truncated importance weights in the loss, ROLL's "tis": ROLL, 2025 (alibaba/ROLL).

    l = -sg(min(r, 1)) A logp

Departs from GRPO: no token weighs more than on-policy and none loses its gradient; no KL. This is about the updates on
a batch; what others call TIS is about the sampler (tis.py).

    python -m experiments.grpo --config=configs/methods/truncated_is.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("truncated_is", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.surrogate = dict(fn="truncated_is")
    return config
