"""GRPO of Tunix 0.1.7: what `GRPOConfig()` gives, tunix/rl/algo_core.py and rl/grpo/grpo_learner.py of the wheel.

    A_i  = (R_i - mean_g) / (std_g + 1e-6), std with G - 1
    loss = 1/B sum_i 1/n_i sum_t [max(-A r, -A clip(r, 1 - .2, 1 + .2)) + .04 (logp - ref_logp)]

Clip .2/.2 with log r in +-20, no dual clip (`epsilon_c`). KL: k1 in the loss, .04 (`kl_loss_mode` "kl"), which
measures the KL and does not hold it back: its expected gradient is 0. One update a batch, so r = 1. Sampler: no
correction.

Departs from GRPO: k1 where GRPO has k3.

    python -m experiments.grpo --config=configs/presets/grpo_tunix_0_1.py
"""

from configs.presets import _start


def get_config(arg: str | None = None):
    return _start.frozen(
        "grpo_tunix_0_1",
        arg,
        advantage=dict(fn="group_relative", ddof=1, eps=1e-6),
        surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.2, max_log_ratio=20.0),
        aggregate=dict(fn="seq_mean_token_mean"),
        kl=dict(fn="k1"),
        kl_coef=0.04,
        updates=1,
    )
