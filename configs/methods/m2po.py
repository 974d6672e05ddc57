"""M2PO, second-moment trust policy optimization: arXiv 2510.01161.

    loss = -1/N sum M_t r_t A_t over all N tokens,   r = pi / mu,   mu the policy that sampled
    M    = 0 on the largest (log r)^2 of T, until the mean of T's others is < .04;   T: A > 0 < log r or A < 0 > log r

Departs from GRPO: no clip; of the tokens pushed further from the sampler, only the outliers are left out, and no more
than it takes; a mean over tokens, no KL. As in the paper; the authors' code clips T at a bound that drops more.

The sampler of experiments.grpo has the newest weights: mu is the policy at the start of the updates up to numerics,
unless top-k, top-p or an engine without sync makes a difference.

    python -m experiments.grpo --config=configs/methods/m2po.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("m2po", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.surrogate = dict(fn="rl_jax.losses.policy.stale:m2po", threshold=0.04)
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
