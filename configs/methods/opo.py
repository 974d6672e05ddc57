"""OPO, on-policy with the optimal baseline: arXiv 2505.23585.

    A_i  = R_i - sum_j n_j R_j / sum_j n_j, sums over the group
    loss = 1/B sum_i sum_t -A logp

Departs from GRPO: the baseline weighs answers by their length, which makes the gradient's variance least; no std, no
ratio, no KL; exactly on-policy, so one update a batch; sums over tokens.

    python -m experiments.grpo --config=configs/methods/opo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("opo", arg, minibatches=1)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="opo")
    config.algorithm.surrogate = dict(fn="reinforce")
    config.algorithm.aggregate = dict(fn="seq_mean_token_sum")
    return config
