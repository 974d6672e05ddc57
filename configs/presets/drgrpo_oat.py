"""Dr. GRPO as its authors ran it: understand-r1-zero dfca49d on oat 0.1.3, train_zero_math.py and examples/*.sh.

    A_i  = R_i - mean_g
    loss = 1/(B L) sum_i sum_t max(-A r, -A clip(r, 1 - .2, 1 + .2)),  L the generation limit (3000 there)

Clip .2/.2, no dual clip, no guard on the log ratio. KL: none (`--beta 0`). Eight updates a batch (128 prompts x 8 in
batches of 128). Sampler: no correction (oat 0.2 has a truncated weight, 2, by default:
--config.algorithm.behavior_weight.fn=truncated).

Departs from GRPO: no division by the group's std, none by the row's length; no KL.

    python -m experiments.grpo --config=configs/presets/drgrpo_oat.py
"""

from configs.presets import _start


def get_config(arg: str | None = None):
    return _start.frozen(
        "drgrpo_oat",
        arg,
        advantage=dict(fn="group_centered"),
        surrogate=dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.2),
        aggregate=dict(fn="seq_mean_token_sum_norm"),
        kl=dict(fn="k3"),
        kl_coef=0.0,
        updates=8,
    )
