"""verl 0.9.1, trainer V1 (separate_async), in bypass mode: compute_policy_loss_bypass_mode with loss_type ppo_clip.

    A_i  = (R_i - mean_g) / (std_g + 1e-6), std with G - 1
    loss = 1/N sum_it l,  l = max(-A r, -A clip(r, 1 - .2, 1 + .2)),  and min(l, -3 A) where A < 0;   r = pi / mu

Clip .2/.2 with log r in +-20, dual clip 3. KL: off. Four updates a batch. Staleness: max_off_policy_threshold 8 with
strategy wait (the YAML has drop), one warm-up batch ahead. Sampler: partial rollouts. Not kept: the YAML's default has
bypass_mode false and no weights, so that stale rows count as fresh; experiments.grpo_async refuses that. Weights go out
at every step, not at every fourth.

Departs from GRPO: stale rows, clipped about the policy that drew them; every token weighs the same; dual clip; no KL.

    python -m experiments.grpo_async --config=configs/asynchronous/verl_v1_async.py
"""

from configs.asynchronous import _start
from configs.presets._start import frozen


def get_config(arg: str | None = None):
    clip = dict(fn="dual_clip", clip_low=0.2, clip_high=0.2, dual_clip=3.0, max_log_ratio=20.0)
    config = frozen(
        "verl_v1_async",
        arg,
        advantage=dict(fn="group_relative", ddof=1, eps=1e-6),
        surrogate=dict(fn=_start.AGAINST, surrogate=clip),
        aggregate=dict(fn="token_mean"),
        kl=dict(fn="k3_clamped", max_difference=20.0, max_value=10.0),
        kl_coef=0.0,
        updates=4,
    )
    return _start.of(config, eta=1, age=8)
