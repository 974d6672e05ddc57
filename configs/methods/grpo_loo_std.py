"""GRPO with leave-one-out mean and std, the default of NeMo-RL: NeMo-RL, 2026 (NVIDIA-NeMo/RL).

    A_i = (R_i - mean of the others) / (std of the others + 1e-6), undivided where the others are all the same

Departs from GRPO: an answer is compared with the others alone; the advantages of a group do not add up to 0. Clip, KL
and aggregation are GRPO's here; NeMo-RL's own are in configs/presets.

    python -m experiments.grpo --config=configs/methods/grpo_loo_std.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("grpo_loo_std", arg)
    config.algorithm.advantage = dict(fn="nemo_leave_one_out")
    return config
