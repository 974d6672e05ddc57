"""GRPO of TRL 0.16.1: what `GRPOConfig()` gave in spring 2025, trl/trainer/grpo_trainer.py of the wheel.

    A_i  = (R_i - mean_g) / (std_g + 1e-4), std with G - 1
    loss = 1/N sum_it [max(-A r, -A clip(r, 1 - .2, 1 + .2)) + .04 k3(logp, ref_logp)]

Clip .2/.2, no dual clip. KL: k3 in the loss, .04. One update a batch, so r = 1. Sampler: no correction. Temperature
.9, for the sampler and the scores. Two things are not kept: N there is the tokens of a device's micro-batch, here of
the update; and rollouts were cut to the 50 likeliest tokens (top_k), more than the vocabularies here have.

Departs from GRPO: every token weighs the same, not every completion (0.15 was the last with the means of row means,
grpo_trl_0_15.py); another epsilon; temperature .9.

    python -m experiments.grpo --config=configs/presets/grpo_trl_0_16.py
"""

from configs.presets import _start


def get_config(arg: str | None = None):
    return _start.frozen(
        "grpo_trl_0_16",
        arg,
        advantage=dict(fn="group_relative", ddof=1, eps=1e-4),
        surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.2),
        aggregate=dict(fn="token_mean"),
        entropy_aggregate=dict(fn="token_mean"),
        kl=dict(fn="k3"),
        kl_coef=0.04,
        updates=1,
        temperature=0.9,
    )
