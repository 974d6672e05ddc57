"""GRPO of OpenRLHF 0.11.2: `estimator group_norm`, `kl.use_loss`, `kl.estimator k3`; models/loss.py of the wheel.

    A_i  = (R_i - mean_g) / (std_g + 1e-9), std with G - 1
    loss = 1/N sum_it [max(-A r, -A clip(r, 1 - .2, 1 + .2)) + .01 min(k3(logp, ref_logp), 10)]

Clip .2/.2 with log r in +-20, no dual clip. KL: k3 in the loss, .01, its value clamped at 10. Eight updates a batch
(128 prompts x 8 in batches of 128, its script with group_norm). Sampler: no correction. Without `kl.use_loss`, which
is off by default, the KL (k1) goes into the reward after the group's normalization; no advantage here does that.

Departs from GRPO: every token weighs the same, not every completion; a smaller KL, clamped; another epsilon.

    python -m experiments.grpo --config=configs/presets/grpo_openrlhf_0_11.py
"""

from configs.presets import _start


def get_config(arg: str | None = None):
    return _start.frozen(
        "grpo_openrlhf_0_11",
        arg,
        advantage=dict(fn="group_relative", ddof=1, eps=1e-9),
        surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.2, max_log_ratio=20.0),
        aggregate=dict(fn="token_mean"),
        kl=dict(fn="k3_clamped", max_difference=20.0, max_value=10.0),
        kl_coef=0.01,
        updates=8,
    )
