"""GDPO, decoupled normalisation of several rewards: arXiv 2601.05242.

    A_i = sum_k w_k (R_ik - mean_g) / (std_g + 1e-4), then (A - mean A) / (std A + 1e-4) over the batch

Departs from GRPO: each component of the reward is normalised in its group before they are added, so that none drowns
the others; the sum is normalised once more.

    python -m experiments.grpo --config=configs/methods/gdpo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("gdpo", arg)
    config.algorithm.advantage = dict(fn="gdpo")
    return config
