"""DPPO-TV about the sampler: arXiv 2602.04879.

    l = -sg(min(r, 20) M) A logp,   r = pi / mu,   M = 1[A > 0: p - p_mu <= .15;  A < 0: p - p_mu >= -.15]

Departs from GRPO: rows may be stale; what bounds an update is how far a token's probability has moved from that with
which it was drawn. A mean over all tokens, no KL.

    python -m experiments.grpo_async --config=configs/asynchronous/dppo_tv.py
"""

from configs.asynchronous import _start


def get_config(arg: str | None = None):
    config = _start.grpo("dppo_tv", arg)
    config.algorithm.surrogate = dict(fn=_start.AGAINST, surrogate=dict(fn="dppo_tv"))
    return config
