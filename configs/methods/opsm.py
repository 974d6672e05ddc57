"""OPSM, off-policy sequence masking, DeepSeek-V3.2: arXiv 2512.02556.

    l = 0 on the rows with A < 0 and mean_t(log mu - log pi) > 1e-4, PPO's clip elsewhere;   mu the policy that sampled

Departs from GRPO: a wrong answer that the policy would hardly give any more is not unlearnt. The mask is found again at
each update, from the current policy. The paper has no number for the bound; 1e-4 is slime's.

The sampler of experiments.grpo has the newest weights: mu is the policy at the start of the updates up to numerics,
unless top-k, top-p or an engine without sync makes a difference.

    python -m experiments.grpo --config=configs/methods/opsm.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("opsm", arg)
    opsm = dict(fn="rl_jax.losses.policy.stale:opsm", delta=1e-4, surrogate="clipped_surrogate")  # clips at .2
    config.algorithm.surrogate = opsm
    return config
