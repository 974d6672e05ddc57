"""REC-Ring-NoIS, REINFORCE in a band and beyond a ring: arXiv 2509.24203.

    A_i = R_i - mean_g
    l   = -M A logp,   M = 1[.8 <= r <= 1.2] + 1[A > 0, r <= .4] + 1[A < 0, r >= 3]

Departs from GRPO: besides the tokens near the old policy, those far from it that their advantage pulls back; no ratio,
no std, a mean over all tokens, no KL. Equation and numbers: Trinity-RFT, examples/rec_gsm8k.

    python -m experiments.grpo --config=configs/methods/rec_ring.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("rec_ring", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="group_centered")
    config.algorithm.surrogate = dict(fn="rl_jax.losses.policy.bands:rec_ring", outer_low=0.6, outer_high=2.0)
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
