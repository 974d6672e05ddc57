"""GRPO of open-instruct 0.3.0: its defaults, open_instruct/grpo_utils.py and data_loader.py at that tag.

    A_i  = R_i - mean_g
    loss = 1/N sum_it [w max(-A r, -A clip(r, 1 - .2, 1 + .272)) + .05 k3(logp, ref_logp)],  w = min(logp_old / mu, 2)

Clip .2/.272, no dual clip. KL: k3 in the loss, .05, its input clamped at 40. One update a batch, so r = 1. Sampler: w
is on, exp of a log ratio in +-10, at most 2. Temperature .7 (1 in later code), for the sampler and the scores.
Prompts without a spread of rewards are left out of the batch; here others are drawn in their place, from four batches
at most, so that N counts the same tokens. A right answer has the reward 10 there, and advantages ten times as large.

Departs from GRPO: no division by the group's std; every token weighs the same; clip-higher; w; a larger KL.

    python -m experiments.grpo --config=configs/presets/grpo_open_instruct_0_3.py
"""

from configs.presets import _start


def get_config(arg: str | None = None):
    return _start.frozen(
        "grpo_open_instruct_0_3",
        arg,
        advantage=dict(fn="group_centered"),
        surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.272),
        aggregate=dict(fn="token_mean"),
        kl=dict(fn="k3_clamped", max_difference=40.0, max_value=1e18),
        kl_coef=0.05,
        updates=1,
        max_batches=4,
        behavior_weight=dict(fn="truncated", level="token", cap=2.0, max_log=10.0),
        temperature=0.7,
    )
