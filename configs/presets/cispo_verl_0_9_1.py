"""CISPO of verl 0.9.1: `policy_loss.loss_mode=cispo` on the YAML's defaults, trainer/ppo/core_algos.py of the wheel.

    A_i  = (R_i - mean_g) / (std_g + 1e-6), std with G - 1
    loss = 1/N sum_it -sg(clip(r, .8, 1.2)) A logp

The bounds are 1 - `clip_ratio_low` and 1 + `clip_ratio_high`, distances from 1 as those of the clip: on-policy every
weight is 1. KL: off; switched on it is low_var_kl, .001: --config.algorithm.kl_coef=0.001. Four updates a batch (1024
prompts in minibatches of 256). Sampler: no correction.

Departs from GRPO: the clipped weight in place of the clipped objective; every token weighs the same; no KL.

    python -m experiments.grpo --config=configs/presets/cispo_verl_0_9_1.py
"""

from configs.presets import _start


def get_config(arg: str | None = None):
    return _start.frozen(
        "cispo_verl_0_9_1",
        arg,
        advantage=dict(fn="group_relative", ddof=1, eps=1e-6),
        surrogate=dict(fn="cispo", ratio_min=0.8, ratio_max=1.2),
        aggregate=dict(fn="token_mean"),
        kl=dict(fn="k3_clamped", max_difference=20.0, max_value=10.0),
        kl_coef=0.0,
        updates=4,
    )
