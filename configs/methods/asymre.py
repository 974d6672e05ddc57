"""AsymRE, asymmetric REINFORCE: arXiv 2506.20520, as in arXiv 2509.24203.

    A_i = R_i - (mean_g - .1)
    l   = -A logp

Departs from GRPO: the baseline lies below the group's mean, so good answers weigh more than bad ones and all are
imitated a little; neither ratio nor clip, no std, a mean over all tokens, no KL. Number: Trinity-RFT's default. Where
rewards are 1 or -1, .1 is half as much as here, where they are 1 or 0: --config.algorithm.advantage.shift=-0.05.

    python -m experiments.grpo --config=configs/methods/asymre.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("asymre", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="rl_jax.advantages.off_policy:asymmetric", shift=-0.1)
    config.algorithm.surrogate = dict(fn="reinforce")
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
