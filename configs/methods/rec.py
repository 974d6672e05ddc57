"""REC-OneSide-NoIS, REINFORCE with PPO's mask: arXiv 2509.24203.

    A_i = R_i - mean_g
    l   = -M A logp,   M = 1[A > 0: r <= 1.2;  A < 0: r >= .8]

Departs from GRPO: PPO's clip decides which tokens take part, and those do so without their ratio; no std, a mean over
all tokens, no KL.

    python -m experiments.grpo --config=configs/methods/rec.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("rec", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="group_centered")
    config.algorithm.surrogate = dict(fn="rec_one_side")
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
