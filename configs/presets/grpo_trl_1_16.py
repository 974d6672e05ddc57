"""GRPO of TRL 1.16.0: what `GRPOConfig()` gives, trl/trainer/grpo_trainer.py and grpo_config.py of the wheel.

    A_i  = (R_i - mean_g) / (std_g + 1e-4), std with G - 1
    loss = 1/N sum_it max(-A r, -A clip(r, 1 - .2, 1 + .2)),  N the tokens of the update ("dapo")

Clip .2/.2, no dual clip (`delta`), no guard on the log ratio. KL: r k3 in the loss (`use_bias_correction_kl`), but
its coefficient is 0: the .04 of old is --config.algorithm.kl_coef=0.04. One update a batch, so r = 1 and nothing is
clipped. Sampler: no correction without vLLM. With it rows are dropped whose product of weights is above 3, as in
--config.algorithm.behavior_weight.fn=sequence_mask.

Departs from GRPO: every token weighs the same, not every completion; no KL; another epsilon.

    python -m experiments.grpo --config=configs/presets/grpo_trl_1_16.py
"""

from configs.presets import _start


def get_config(arg: str | None = None):
    return _start.frozen(
        "grpo_trl_1_16",
        arg,
        advantage=dict(fn="group_relative", ddof=1, eps=1e-4),
        surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.2),
        aggregate=dict(fn="token_mean"),
        entropy_aggregate=dict(fn="token_mean"),
        kl=dict(fn="ratio_k3"),
        kl_coef=0.0,
        updates=1,
    )
