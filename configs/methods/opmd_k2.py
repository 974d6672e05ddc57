"""Kimi's OPMD, REINFORCE with a k2 regulariser towards the old policy: arXiv 2501.12599, as in arXiv 2509.24203.

    A_i = R_i - mean_g
    l   = -A logp + .1 (logp - old_logp)^2

Departs from GRPO: a square of the log ratio holds the policy back, where GRPO clips; no std, a mean over all tokens, no
KL to the reference. Numbers: Trinity-RFT, examples/rec_gsm8k (regularizer "k2"); its square has no 1/2, so tau is .2.

    python -m experiments.grpo --config=configs/methods/opmd_k2.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("opmd_k2", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="group_centered")
    config.algorithm.surrogate = dict(fn="dro", tau=0.2)
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
