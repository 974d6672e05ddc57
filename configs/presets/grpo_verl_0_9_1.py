"""GRPO of verl 0.9.1: `algorithm.adv_estimator=grpo` on the YAML's defaults, trainer/ppo/core_algos.py of the wheel.

    A_i  = (R_i - mean_g) / (std_g + 1e-6), std with G - 1
    loss = 1/N sum_it l,  l = max(-A r, -A clip(r, 1 - .2, 1 + .2)),  and min(l, -3 A) where A < 0

Clip .2/.2 with log r in +-20, and the dual clip at 3 that is always on. KL: off (`use_kl_loss`); switched on it is
low_var_kl in the loss, .001: --config.algorithm.kl_coef=0.001. Entropy 0. Four updates a batch (1024 prompts in
minibatches of 256). Sampler: no correction (rollout_is null in the YAML; "sequence" in the dataclass). One thing is
not kept: where a group has one sample, verl trains on its raw reward.

Departs from GRPO: every token weighs the same, not every completion; the dual clip; no KL.

    python -m experiments.grpo --config=configs/presets/grpo_verl_0_9_1.py
"""

from configs.presets import _start


def get_config(arg: str | None = None):
    return _start.frozen(
        "grpo_verl_0_9_1",
        arg,
        advantage=dict(fn="group_relative", ddof=1, eps=1e-6),
        surrogate=dict(fn="dual_clip", clip_low=0.2, clip_high=0.2, dual_clip=3.0, max_log_ratio=20.0),
        aggregate=dict(fn="token_mean"),
        kl=dict(fn="k3_clamped", max_difference=20.0, max_value=10.0),
        kl_coef=0.0,
        updates=4,
    )
