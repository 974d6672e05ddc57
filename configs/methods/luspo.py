"""LUSPO, length-unbiased sequence policy optimization: arXiv 2602.05261.

    s_i  = exp(1/n_i sum_t (logp - old_logp))
    loss = 1/B sum_i n_i max(-A_i s_i, -A_i clip(s_i, 1 - 2e-3, 1 + 2.5e-3))

Departs from GRPO: GSPO's ratio, its bounds a little wider, and a row's loss times its length, so that a token weighs
the same in a short and a long answer; no KL.

    python -m experiments.grpo --config=configs/methods/luspo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("luspo", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.surrogate = dict(fn="gspo", clip_low=2e-3, clip_high=2.5e-3)
    config.algorithm.aggregate = dict(fn="seq_mean_token_sum")
    return config
