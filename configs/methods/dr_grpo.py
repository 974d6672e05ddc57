"""Dr. GRPO, GRPO done right: arXiv 2503.20783.

    A_i  = R_i - mean_g
    loss = 1/(B L) sum_i sum_t max(-A r, -A clip(r, 1 - .2, 1 + .2)),  L the generation limit

Departs from GRPO: no division by the group's std, which favours prompts that are nearly always or never solved; none
by the row's length, which makes long wrong answers cheap; no KL.

    python -m experiments.grpo --config=configs/methods/dr_grpo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("dr_grpo", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="group_centered")
    config.algorithm.aggregate = dict(fn="seq_mean_token_sum_norm")
    return config
