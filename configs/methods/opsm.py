"""OPSM, off-policy sequence masking, DeepSeek-V3.2: arXiv 2512.02556.

    l = 0 on the rows with A < 0 and mean_t(behavior_logp - old_logp) > 1e-4, PPO's clip elsewhere

Departs from GRPO: a wrong answer that the policy would hardly give any more is not unlearnt. The paper has no number
for the bound; 1e-4 is slime's.

The sampler of experiments.grpo has the newest weights: behavior_logp is old_logp up to numerics and nothing is left
out, unless top-k, top-p or an engine without sync makes a difference.

    python -m experiments.grpo --config=configs/methods/opsm.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("opsm", arg)
    config.algorithm.behavior_weight = dict(fn="opsm")
    return config
