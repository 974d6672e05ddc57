"""RED-Drop, REINFORCE on balanced groups: arXiv 2509.24203.

    A_i = R_i - mean of those kept, 0 for the dropped;   bad answers are dropped until there are <= as many as good ones
    l   = -A logp

Departs from GRPO: surplus bad answers of a group are dropped at random; neither ratio nor clip, no std, a mean over all
tokens (the dropped ones count, as in Trinity-RFT's code), no KL.

    python -m experiments.grpo --config=configs/methods/red_drop.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("red_drop", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="rl_jax.advantages.off_policy:balanced")
    config.algorithm.surrogate = dict(fn="reinforce")
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
