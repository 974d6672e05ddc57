"""SPINE, test-time learning at forking tokens: arXiv 2511.17938. A group's vote is the label; few tokens are trained.

    R = 1[answer = majority];   l = 1[H_t in the row's top fifth] max(-A r, -A clip(r, 1 -+ .2)) - w_t H_t

Departs from GRPO: no label is read; only the fifth of each response's tokens with the highest entropy is trained on,
and their entropy is held in a band by w_t (rl_jax.token_weights.forking). The band's edges, quantiles .1 and .5 of
these tokens, and its weights of .01 are our reading: published accounts disagree. The task's reward is only measured.

    python -m experiments.grpo --config=configs/experience/spine.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("spine", arg)
    config.algorithm.kl_coef = 0.04
    config.algorithm.token_weight = dict(fn="rl_jax.token_weights.forking:forking", share=0.2)
    config.algorithm.entropy_weight = dict(
        fn="rl_jax.token_weights.forking:entropy_band", share=0.2, low=0.1, high=0.5, raise_coef=0.01, lower_coef=0.01
    )
    config.algorithm.aggregate = dict(fn="token_mean")
    rule = "last_number" if config.task.name == "arithmetic" else "whole"
    config.reward.terms = dict(vote=dict(fn="groups.majority", rule=rule), right=dict(fn="task", weight=0.0))
    return config
