"""REINFORCE with a running mean as baseline: Williams, 1992.

    b    <- .9 b + .1 mean R, after its use
    loss = 1/B sum_i -(R_i - b) sum_t logp

Departs from GRPO: the baseline is the mean reward of the steps before, so that one sample a prompt is enough; no scale,
no ratio, no KL; sums over tokens; one update a batch.

    python -m experiments.grpo --config=configs/methods/reinforce_ema.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("reinforce_ema", arg, minibatches=1)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="tracked_baseline")
    config.algorithm.trackers.baseline = dict(fn="ema_mean")
    config.algorithm.surrogate = dict(fn="reinforce")
    config.algorithm.aggregate = dict(fn="seq_mean_token_sum")
    return config
