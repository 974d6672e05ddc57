"""CISPO of TRL 1.16.0: `GRPOConfig(loss_type="cispo")` and nothing else, trl/trainer/grpo_trainer.py of the wheel.

    A_i  = (R_i - mean_g) / (std_g + 1e-4), std with G - 1
    loss = 1/N sum_it -sg(min(r, .2)) A logp

The bound is `epsilon_high`, ABSOLUTE here, and its default is that of the clip, .2: every token weighs .2 wherever
its ratio is above that, on-policy too. TRL's documentation advises 5:
--config.algorithm.surrogate.ratio_max=5.0. No lower bound. KL: r k3 in the loss, coefficient 0. One update a batch.
Sampler: no correction without vLLM.

Departs from GRPO: the clipped weight in place of the clipped objective; every token weighs the same; no KL.

    python -m experiments.grpo --config=configs/presets/cispo_trl_1_16.py
"""

from configs.presets import _start


def get_config(arg: str | None = None):
    return _start.frozen(
        "cispo_trl_1_16",
        arg,
        advantage=dict(fn="group_relative", ddof=1, eps=1e-4),
        surrogate=dict(fn="cispo", ratio_min=0.0, ratio_max=0.2),
        aggregate=dict(fn="token_mean"),
        entropy_aggregate=dict(fn="token_mean"),
        kl=dict(fn="ratio_k3"),
        kl_coef=0.0,
        updates=1,
    )
