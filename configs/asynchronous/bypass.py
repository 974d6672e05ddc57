"""Bypass PPO, two policies instead of three: arXiv 1707.06347; verl's bypass_mode with loss_type ppo_clip.

    l = max(-A r, -A clip(r, 1 - .2, 1 + .2)),   r = pi / mu

Departs from GRPO: rows may be stale, and the clip is about mu, the policy that drew each token: no forward before the
updates, but the older a row, the less of it may move. A mean over all tokens, no KL.

    python -m experiments.grpo_async --config=configs/asynchronous/bypass.py
"""

from configs.asynchronous import _start


def get_config(arg: str | None = None):
    config = _start.grpo("bypass", arg)
    config.algorithm.surrogate = dict(fn=_start.AGAINST, surrogate=dict(fn="clipped_surrogate"))
    return config
