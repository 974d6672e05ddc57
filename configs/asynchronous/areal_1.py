"""AReaL 1.0: ppo_actor_loss_fn with its decoupled loss, on the values of examples/math/gsm8k_grpo.yaml (00d07c0).

    A_i  = (R_i - mean_g) / (std_g + 1e-5), std with G - 1
    loss = 1/N sum_it sg(w) max(-A r, -A clip(r, 1 - .4, 1 + .4)),   w = prox / mu, 0 if w > 5,   r = pi / prox

Clip .4/.4, N the tokens of the unfiltered mask. KL: off. One update a batch. Staleness: max_head_offpolicyness 2, and
no bound on a row's age, which is 8 here. Sampler: interrupted at new weights. Not kept: adv_norm of the example, which
divides the advantages of the batch by their std once more.

Departs from GRPO: stale rows, weighed; every token weighs the same; no KL.

    python -m experiments.grpo_async --config=configs/asynchronous/areal_1.py
"""

from configs.asynchronous import _start
from configs.presets._start import frozen


def get_config(arg: str | None = None):
    config = frozen(
        "areal_1",
        arg,
        advantage=dict(fn="group_relative", ddof=1, eps=1e-5),
        surrogate=dict(fn="clipped_surrogate", clip_low=0.4, clip_high=0.4),
        aggregate=dict(fn="token_mean"),
        kl=dict(fn="k1"),
        kl_coef=0.0,
        updates=1,
        behavior_weight=dict(fn="masked", cap=5.0),
    )
    return _start.of(config, eta=2, age=8)
