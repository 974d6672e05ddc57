"""REINFORCE with the batch's mean as baseline, OpenRLHF's flash_reinforce: OpenRLHF 0.11, 2026.

    A_i = R_i - mean over the batch

Departs from GRPO: no groups and no std, so that one sample a prompt is enough; a mean over all tokens, no KL.

    python -m experiments.grpo --config=configs/methods/flash_reinforce.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("flash_reinforce", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="batch_centered")
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
