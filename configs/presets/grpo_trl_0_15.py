"""GRPO of TRL 0.15.2: what `GRPOConfig()` gave in February 2025, trl/trainer/grpo_trainer.py of the wheel; 0.14 too.

    A_i  = (R_i - mean_g) / (std_g + 1e-4), std with G - 1
    loss = 1/B sum_i 1/n_i sum_t [-A exp(logp - sg(logp)) + .04 k3(logp, ref_logp)]

B counts all rows, those without a token too. No clip: the ratio is 1 by construction, one update a batch. KL: k3 in
the loss, .04. Sampler: no correction. One thing is not kept: completions were sampled at temperature .9 and scored at
1; here both are at 1.

Departs from GRPO: no clip; another epsilon.

    python -m experiments.grpo --config=configs/presets/grpo_trl_0_15.py
"""

from configs.presets import _start


def get_config(arg: str | None = None):
    return _start.frozen(
        "grpo_trl_0_15",
        arg,
        advantage=dict(fn="group_relative", ddof=1, eps=1e-4),
        surrogate=dict(fn="importance_sampling"),
        aggregate=dict(fn="seq_mean_token_mean", count_empty_rows=True),
        entropy_aggregate=dict(fn="token_mean"),
        kl=dict(fn="k3"),
        kl_coef=0.04,
        updates=1,
    )
