"""Decoupled PPO with a forward for the proximal policy, AReaL: arXiv 2110.00641, arXiv 2505.24298.

    l = sg(w) max(-A r, -A clip(r, 1 - .2, 1 + .2)),   w = prox / mu, 0 if w > 5,   r = pi / prox

Departs from GRPO: rows may be stale; the clip is about prox, the policy at the start of the updates (one forward more),
and w corrects for mu, the one that drew each token. A mean over all tokens, no KL.

    python -m experiments.grpo_async --config=configs/asynchronous/decoupled.py
"""

from configs.asynchronous import _start


def get_config(arg: str | None = None):
    config = _start.grpo("decoupled", arg)
    config.algorithm.behavior_weight = dict(fn="masked", cap=5.0)
    return config
