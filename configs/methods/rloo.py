"""RLOO, REINFORCE with a leave-one-out baseline, ratios by token: arXiv 2402.14740.

    R'_i = R_i - .05 sum_t k1(old_logp, ref_logp)
    A_i  = R'_i - 1/(G-1) sum_{j != i} R'_j
    loss = 1/B sum_i sum_t max(-A r, -A clip(r, 1 - .2, 1 + .2))

Departs from GRPO: the mean of the others as baseline and no division by a std; the KL in the reward; sums over tokens.
The paper updates once a batch; the clip is for more.

    python -m experiments.grpo --config=configs/methods/rloo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("rloo", arg)
    config.algorithm.update(reward_kl_coef=0.05, kl_coef=0.0)
    config.algorithm.advantage = dict(fn="leave_one_out")
    config.algorithm.aggregate = dict(fn="seq_mean_token_sum")
    return config
