"""Decoupled PPO, AReaL: arXiv 2110.00641, arXiv 2505.24298.

    l = sg(exp(old_logp - behavior_logp)) max(-A r, -A clip(r, 1 - .2, 1 + .2)),   r = exp(logp - old_logp)

Departs from GRPO: the clip is about the policy at the start of the updates, the importance weight about the policy that
sampled: stale samples are corrected without being clipped away. A mean over all tokens, no KL.

The sampler of experiments.grpo has the newest weights: nothing is stale there, and the weight is 1 up to numerics,
unless top-k, top-p or an engine without sync makes a difference. What is left is token-mean GRPO without a KL.

    python -m experiments.grpo --config=configs/methods/decoupled_ppo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("decoupled_ppo", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.behavior_weight = dict(fn="exact")
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
