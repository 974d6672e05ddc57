"""TOPR, tapered off-policy REINFORCE: arXiv 2503.14286.

    p_i  = exp(sum_t (logp - old_logp))
    loss = 1/B sum_i -A_i w_i sum_t logp,   w_i = 1 where A_i >= 0, sg(min(p_i, 1)) elsewhere

Departs from GRPO: right answers are imitated whatever their ratio, wrong ones are pushed down only as far as they are
still likely; R - mean_g without a std, sums over tokens, no KL.

    python -m experiments.grpo --config=configs/methods/topr.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("topr", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="group_centered")
    config.algorithm.surrogate = dict(fn="topr")
    config.algorithm.aggregate = dict(fn="seq_mean_token_sum")
    return config
