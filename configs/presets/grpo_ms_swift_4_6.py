"""GRPO of ms-swift 4.6.0: its defaults, rlhf_trainers/grpo_trainer.py and arguments/rlhf_args.py of the wheel.

    A_i  = (R_i - mean_g) / (std_g + 1e-4), std with G - 1
    loss = 1/B sum_i 1/n_i sum_t [max(-A r, -A clip(r, 1 - .2, 1 + .2)) + .04 min(k3(logp, ref_logp), 10)]

Clip .2/.2, no dual clip (`delta`), no guard on the log ratio. KL: k3 in the loss, .04, its input clamped at 20 and
its value at 10. One update a batch, so r = 1. Sampler: no correction. Temperature .9, for the sampler and the scores.

Departs from GRPO: the clamp of the KL; another epsilon; temperature .9.

    python -m experiments.grpo --config=configs/presets/grpo_ms_swift_4_6.py
"""

from configs.presets import _start


def get_config(arg: str | None = None):
    return _start.frozen(
        "grpo_ms_swift_4_6",
        arg,
        advantage=dict(fn="group_relative", ddof=1, eps=1e-4),
        surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.2),
        aggregate=dict(fn="seq_mean_token_mean"),
        kl=dict(fn="k3_clamped", max_difference=20.0, max_value=10.0),
        kl_coef=0.04,
        updates=1,
        temperature=0.9,
    )
