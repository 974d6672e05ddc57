"""Lite PPO, "Tricks or Traps?": arXiv 2508.08221.

    A_i  = (R_i - mean_g) / (std over the batch + 1e-6)
    loss = 1/(sum_i n_i) sum_i sum_t max(-A r, -A clip(r, 1 - .2, 1 + .2))

Departs from GRPO: the std is the whole batch's, the mean is over all tokens, no KL. That is all of it.

    python -m experiments.grpo --config=configs/methods/lite_ppo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("lite_ppo", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="group_mean_batch_std")
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
