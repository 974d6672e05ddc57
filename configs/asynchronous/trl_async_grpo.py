"""TRL 1.16's asynchronous GRPO: AsyncGRPOTrainer.compute_loss and AsyncGRPOConfig of trl.experimental.async_grpo.

    A_i  = (R_i - mean_g) / (std_g + 1e-8), std with G
    loss = 1/N sum_it max(-A r, -A clip(r, 1 - .2, 1 + .2)),   r = pi / mu

Clip .2/.2. KL: off, there is none. One update a batch. Staleness: max_staleness 4, older samples are discarded one by
one there, by groups here. Sampler: rows keep their caches at new weights.

Departs from GRPO: stale rows, clipped about the policy that drew them; every token weighs the same; no KL.

    python -m experiments.grpo_async --config=configs/asynchronous/trl_async_grpo.py
"""

from configs.asynchronous import _start
from configs.presets._start import frozen


def get_config(arg: str | None = None):
    config = frozen(
        "trl_async_grpo",
        arg,
        advantage=dict(fn="group_relative", ddof=0, eps=1e-8),
        surrogate=dict(fn=_start.AGAINST, surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.2)),
        aggregate=dict(fn="token_mean"),
        kl=dict(fn="k1"),
        kl_coef=0.0,
        updates=1,
    )
    return _start.of(config, eta=4, age=4, order="drop", in_flight="keep")
