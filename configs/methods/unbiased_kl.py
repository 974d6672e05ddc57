"""Unbiased KL estimate, DeepSeek-V3.2: arXiv 2512.02556.

    l = max(-A r, -A clip(r, 1 - .2, 1 + .2)) + .04 r k3(logp, ref_logp),   r differentiated in both

Departs from GRPO: the KL term carries the ratio, so that its expected gradient is that of KL(pi || ref), which that of
k3 alone is not, and stays so after the first update on a batch.

    python -m experiments.grpo --config=configs/methods/unbiased_kl.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("unbiased_kl", arg)
    config.algorithm.kl = dict(fn="ratio_k3")
    return config
