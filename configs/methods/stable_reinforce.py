"""StableReinforce, of R1-Reward: arXiv 2505.02835. Ratios are bounded before the exponential, outliers dropped.

    r = exp(clip(logp - old_logp, -log 1000, log 1000));   l = max(-A r, -A clip(r, .8, 1.2)) + .001 k3
    A = z if |z| <= 3 else 0,   z = (R - mean) / std over the batch

Departs from GRPO: the batch's mean and std; a row with an outlying reward moves nothing. The reward for
a judgement that follows from its own reasoning is in configs/preferences/judged.py:reasoned. yfzhang114/r1_reward
compares z with three std of the raw rewards, where this is the paper's text, and it has .001 k1 in the token rewards,
whose sums to go it whitens over tokens (one answer a prompt), where this has GRPO's groups and k3 in the loss.

    python -m experiments.grpo --config=configs/methods/stable_reinforce.py
"""

import math

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("stable_reinforce", arg)
    config.algorithm.kl_coef = 0.001
    config.algorithm.advantage = dict(fn="rl_jax.advantages.filtered:three_sigma", limit=3.0)
    config.algorithm.surrogate.max_log_ratio = math.log(1000)
    return config
