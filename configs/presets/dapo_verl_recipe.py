"""DAPO as its authors ran it in verl: verl-recipe 48ea0a7, dapo/run_dapo_qwen2.5_32b.sh.

    A_i  = (R_i - mean_g) / (std_g + 1e-6), std with G - 1, after the overlong punishment
    loss = 1/N sum_it l,  l = max(-A r, -A clip(r, 1 - .2, 1 + .28)),  and min(l, -10 A) where A < 0

Clip .2/.28 with log r in +-20, dual clip at 10. No KL. Prompts whose completions are all right or all wrong are
replaced by others, ten batches at most. Completions in the last fifth before the limit lose up to 1 (4,096 of 20,480
tokens). 16 updates a batch (512 prompts x 16 in minibatches of 32 prompts). Sampler: no correction.

Departs from GRPO: clip-higher, the dual clip, dynamic sampling, a mean over all tokens, the overlong punishment; no
KL.

    python -m experiments.grpo --config=configs/presets/dapo_verl_recipe.py
"""

from configs.presets import _start


def get_config(arg: str | None = None):
    return _start.frozen(
        "dapo_verl_recipe",
        arg,
        advantage=dict(fn="group_relative", ddof=1, eps=1e-6),
        surrogate=dict(fn="dual_clip", clip_low=0.2, clip_high=0.28, dual_clip=10.0, max_log_ratio=20.0),
        aggregate=dict(fn="token_mean"),
        kl=dict(fn="k3_clamped", max_difference=20.0, max_value=10.0),
        kl_coef=0.0,
        updates=16,
        overlong_share=0.2,
        max_batches=10,
    )
