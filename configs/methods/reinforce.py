"""REINFORCE: Williams, 1992.

    loss = 1/B sum_i -R_i sum_t logp

Departs from GRPO: no baseline, no scale, no ratio, no KL; sums over tokens; one update a batch, since nothing corrects
for a second.

    python -m experiments.grpo --config=configs/methods/reinforce.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("reinforce", arg, minibatches=1)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="no_baseline")
    config.algorithm.surrogate = dict(fn="reinforce")
    config.algorithm.aggregate = dict(fn="seq_mean_token_sum")
    return config
