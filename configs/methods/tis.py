"""TIS, truncated importance sampling of the sampler: Yao et al., 2025 (fengyao.notion.site/off-policy-rl).

    l = min(w, 2) max(-A r, -A clip(r, 1 - .2, 1 + .2)),   w = exp(old_logp - behavior_logp)

Departs from GRPO: each token weighs what the trainer thinks of it against what the sampler thought, and never more
than 2. The KL term is not weighted.

The sampler of experiments.grpo has the newest weights: w is 1 up to numerics, unless top-k, top-p or an engine
without sync makes a difference.

    python -m experiments.grpo --config=configs/methods/tis.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("tis", arg)
    config.algorithm.behavior_weight = dict(fn="truncated")
    return config
