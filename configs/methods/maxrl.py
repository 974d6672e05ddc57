"""MaxRL, maximum-likelihood reinforcement learning: arXiv 2602.02710.

    A_i = (R_i - mean_g) / mean_g, and 0 where mean_g is 0

Departs from GRPO: divided by the pass rate in place of the std, so that the gradient is that of the log pass rate: a
prompt that is solved once in ten weighs ten times as much. That holds for sums over a row with one divisor for all, so
the mean is over all tokens, and there is one update a batch, as in tajwarfahim/maxrl. No KL.

    python -m experiments.grpo --config=configs/methods/maxrl.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("maxrl", arg, minibatches=1)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="maxrl")
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
