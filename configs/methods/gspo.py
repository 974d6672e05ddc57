"""GSPO, group sequence policy optimization: arXiv 2507.18071.

    s_i  = exp(1/n_i sum_t (logp - old_logp))
    loss = 1/B sum_i max(-A_i s_i, -A_i clip(s_i, 1 - 3e-4, 1 + 4e-4))

Departs from GRPO: one ratio a completion, the geometric mean of its tokens', within bounds that are 500 times closer;
no KL. Four updates a batch, as in the paper.

    python -m experiments.grpo --config=configs/methods/gspo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("gspo", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.surrogate = dict(fn="gspo")
    return config
