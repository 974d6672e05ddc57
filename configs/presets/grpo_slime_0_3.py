"""GRPO of slime 0.3.1: its defaults, slime/utils/arguments.py, utils/ppo_utils.py and ray/rollout.py at that tag.

    A_i  = (R_i - mean_g) / (std_g + 1e-6), std with G - 1
    loss = 1/B sum_i 1/n_i sum_t max(-A r, -A clip(r, 1 - .2, 1 + .2))

Clip .2/.2, no dual clip, no guard on the log ratio. KL: off (`use_kl_loss`), and its type is k1, whose expected
gradient is 0, where it is switched on without another. Updates a batch have no default there; here it is one.
Sampler: no correction (`use_tis`). One thing is not kept: where a rollout is lost, slime makes one group of the whole
batch.

Departs from GRPO: no KL.

    python -m experiments.grpo --config=configs/presets/grpo_slime_0_3.py
"""

from configs.presets import _start


def get_config(arg: str | None = None):
    return _start.frozen(
        "grpo_slime_0_3",
        arg,
        advantage=dict(fn="group_relative", ddof=1, eps=1e-6),
        surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.2),
        aggregate=dict(fn="seq_mean_token_mean"),
        kl=dict(fn="k1"),
        kl_coef=0.0,
        updates=1,
    )
