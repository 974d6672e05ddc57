"""RED-Weight, REINFORCE with exponential weights: arXiv 2509.24203.

    A_i = R_i - mean_g
    l   = -exp(A / tau) A logp,   tau = 1

Departs from GRPO: good answers weigh exponentially more than bad ones; neither ratio nor clip, no std, a mean over all
tokens, no KL. Equation and numbers: Trinity-RFT, examples/rec_gsm8k (weight "advantage", not normalised).

    python -m experiments.grpo --config=configs/methods/red_weight.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("red_weight", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="group_centered")
    config.algorithm.token_weight = dict(fn="rl_jax.token_weights.pushes:exponential", temperature=1.0)
    config.algorithm.surrogate = dict(fn="reinforce")
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
