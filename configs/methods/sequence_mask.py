"""Sequence-level masked importance sampling, TRL's default with vLLM: Liu et al., 2025 ("When Speed Kills Stability").

    l = p_i 1[p_i <= 3] max(-A r, -A clip(r, 1 - .2, 1 + .2)),   p_i = exp(sum_t (old_logp - behavior_logp))

Departs from GRPO: a completion weighs by the product of its tokens' trainer-to-sampler ratios, and is left out where
that is above 3.

The sampler of experiments.grpo has the newest weights: p_i is 1 up to numerics, unless top-k, top-p or an engine
without sync makes a difference.

    python -m experiments.grpo --config=configs/methods/sequence_mask.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("sequence_mask", arg)
    config.algorithm.behavior_weight = dict(fn="sequence_mask")
    return config
