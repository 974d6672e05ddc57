"""AIPO, asynchronous importance-weighted policy optimization, LlamaRL: arXiv 2505.24034.

    A_i  = R_i - mean_g
    loss = -1/B sum_i sum_t sg(min(pi / mu, 2)) A_i logp,   mu the policy that sampled

Departs from GRPO: the ratio is to the sampler itself, with no proximal policy between, and only its upper end is cut
off; the group's mean as baseline and no division by its std; sums over tokens (PRIME-RL calls its mean over tokens a
variant of AIPO); no KL. The paper gives the range 2 to 10 for the bound.

The sampler of experiments.grpo has the newest weights: mu is the policy at the start of the updates up to numerics,
unless top-k, top-p or an engine without sync makes a difference.

    python -m experiments.grpo --config=configs/methods/aipo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("aipo", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="group_centered")
    config.algorithm.surrogate = dict(fn="aipo")
    config.algorithm.aggregate = dict(fn="seq_mean_token_sum")
    return config
