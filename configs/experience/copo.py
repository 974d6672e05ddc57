"""COPO, consistency-aware policy optimization: arXiv 2508.04138. Prompts are compared where a group's answers agree.

    A = w A_local + (1 - w) A_global,   w = sigma(H - .5), 0 if the group's rewards are equal,   H in bits
    A_global = zscore over the prompts of mean_g(R) (1 - lambda H),   lambda = (1 - 1/G) / log2 G

Departs from GRPO: a group that is all wrong or all right still learns, by how it compares with the other prompts'; a
dual clip of 3, a mean over all tokens, no KL. The two advantages are blended where the paper blends their losses
(rl_jax/advantages/consistency.py). Official code: hijih/copo-code, whose trainer could be read in part.

    python -m experiments.grpo --config=configs/experience/copo.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("copo", arg)
    config.algorithm.advantage = dict(fn="rl_jax.advantages.consistency:copo", slope=1.0, midpoint=0.5)
    config.algorithm.surrogate = dict(fn="dual_clip", clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    config.algorithm.aggregate = dict(fn="token_mean")
    rule = "last_number" if config.task.name == "arithmetic" else "whole"
    entropy = dict(fn="rl_jax.rewards.contrast:answer_entropy", rule=rule)
    config.reward.terms = dict(right=dict(fn="task"), entropy=entropy)
    config.reward.compose = dict(fn="rl_jax.rewards.contrast:only", names=("right",))
    return config
