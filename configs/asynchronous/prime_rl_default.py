"""prime-rl's default (559b447, 2026-08-21): default_loss_fn and DefaultLossConfig of its trainer, GRPOAlgorithm.

    A_i  = R_i - mean_g
    loss = 1/N sum_it -M A r + .001 (log r)^2,   r = pi / mu,   M = 1[A > 0: p - p_mu <= .2;  A < 0: p - p_mu >= -.2]

No clip: the bound is on the change of a token's probability. KL: off; the square of the log ratio is always on. One
update a batch. Staleness: max_off_policy_steps 8, older groups are dropped. Sampler: rows keep their caches at new
weights. Not kept: groups of one reward are left out of N there.

Departs from GRPO: stale rows, held near the policy that drew them; no std; every token weighs the same; no KL.

    python -m experiments.grpo_async --config=configs/asynchronous/prime_rl_default.py
"""

from configs.asynchronous import _start
from configs.presets._start import frozen


def get_config(arg: str | None = None):
    bound = dict(fn=f"{_start.STALE}:near_sampler", divergence_low=0.2, divergence_high=0.2, log_ratio_coef=1e-3)
    config = frozen(
        "prime_rl_default",
        arg,
        advantage=dict(fn="group_centered"),
        surrogate=bound,
        aggregate=dict(fn="token_mean"),
        kl=dict(fn="k1"),
        kl_coef=0.0,
        updates=1,
    )
    return _start.of(config, eta=8, age=8, order="drop", in_flight="keep")
