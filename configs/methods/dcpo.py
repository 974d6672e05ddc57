"""DCPO, dynamic clipping and advantages over all visits of a prompt: arXiv 2509.02333.

    l = max(-A r, -A clip(r, lo, hi)), lo, hi = 1/2 + 1/2 sqrt(1 -+ 4 eps / q), q = exp(old_logp); eps .16 and .2
    A = the smaller in size of (i-1)/i A_new + 1/i A_all  and  1/i A_new + (i-1)/i A_all   at a prompt's i-th visit

Departs from GRPO: rarer tokens may move further (hi <= 10, dual clip 10); A_all is standardised with mean and std over
all visits of the prompt; a sum of row means over the rows of an update, no KL. Equations: lime-RL/DCPO, whose newest
README has a sum over all tokens in place of that of row means (--config.algorithm.aggregate.fn=token_sum).

    python -m experiments.grpo --config=configs/methods/dcpo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("dcpo", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="rl_jax.advantages.remembered:smooth_standardized")
    config.algorithm.trackers.baseline = dict(fn="rl_jax.advantages.memory:prompt_moments")
    config.algorithm.surrogate = dict(fn="rl_jax.losses.policy.bands:dcpo", clip_low=0.16, clip_high=0.2)
    config.algorithm.aggregate = dict(fn="only_token_mean")
    return config
