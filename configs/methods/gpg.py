"""GPG, group policy gradient: arXiv 2504.02546.

    A_i  = alpha (R_i - mean_g),   alpha = B / #(rewards that are not 0)
    loss = 1/(sum_i n_i) sum_i sum_t -A logp

Departs from GRPO: no std, no ratio, no clip, no KL; what groups without a signal take from the mean is given back; one
update a batch; a mean over all tokens.

    python -m experiments.grpo --config=configs/methods/gpg.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("gpg", arg, minibatches=1)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="gpg")
    config.algorithm.surrogate = dict(fn="reinforce")
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
