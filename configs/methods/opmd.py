"""OPMD of Trinity-RFT, online policy mirror descent: arXiv 2505.17826, as read in arXiv 2509.24203.

    A_i = (R_i - b_g) / (1 + tau),   b_g = tau log(1/G sum_j exp(R_j / tau)),   tau = 1
    l   = -A logp

Departs from GRPO: REINFORCE against a soft maximum of the group's rewards, with neither a ratio nor a clip; a mean over
all tokens, no KL. Trinity's code has the group's mean as its default baseline, this one as "logavgexp".

    python -m experiments.grpo --config=configs/methods/opmd.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("opmd", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="rl_jax.advantages.off_policy:opmd", tau=1.0)
    config.algorithm.surrogate = dict(fn="reinforce")
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
