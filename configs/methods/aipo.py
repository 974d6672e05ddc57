"""AIPO, asynchronous importance-weighted policy optimization, LlamaRL: arXiv 2505.24034.

    l = -sg(min(pi / mu, 2)) A logp,   mu the policy that sampled

Departs from GRPO: the ratio is to the sampler itself, with no proximal policy between, and only its upper end is cut
off; no KL. The paper gives the range 2 to 10 for the bound.

The sampler of experiments.grpo has the newest weights: mu is the policy at the start of the updates up to numerics,
unless top-k, top-p or an engine without sync makes a difference.

    python -m experiments.grpo --config=configs/methods/aipo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("aipo", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.surrogate = dict(fn="aipo")
    return config
