"""DRO, the policy update of Kimi k1.5: arXiv 2501.12599, arXiv 2405.19107.

    A_i  = R_i - mean_g
    loss = 1/B sum_i sum_t ( -A logp + tau/2 (logp - old_logp)^2 ),   tau = .1

Departs from GRPO: neither ratio nor clip, a square that pulls back to the old policy; no std, sums over tokens, no KL
to the reference. Kimi squares the completion's log ratio, here (as in verl and ROLL) each token's.

    python -m experiments.grpo --config=configs/methods/dro.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("dro", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="group_centered")
    config.algorithm.surrogate = dict(fn="dro")
    config.algorithm.aggregate = dict(fn="seq_mean_token_sum")
    return config
