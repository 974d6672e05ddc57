"""REC-TwoSide-IS, REINFORCE on tokens near the old policy: arXiv 2509.24203.

    A_i = R_i - mean_g
    l   = -sg(r M) A logp,   M = 1[.8 <= r <= 1.2]

Departs from GRPO: a token takes part only if its ratio is within the band, whichever way its advantage pushes it; no
std, a mean over all tokens, no KL. Equation and numbers: Trinity-RFT, examples/rec_gsm8k.

    python -m experiments.grpo --config=configs/methods/rec_two_side.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("rec_two_side", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="group_centered")
    config.algorithm.surrogate = dict(fn="rl_jax.losses.policy.bands:rec_two_side", clip_low=0.2, clip_high=0.2)
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
