"""A-3PO, decoupled PPO without a forward for the proximal policy: arXiv 2512.06547.

    log prox = log mu + a (sg(log pi) - log mu),   a = (d - 1) / d for a token drawn d updates ago, 0 if d <= 1
    l = sg(w) max(-A r, -A clip(r, 1 - .2, 1 + .2)),   w = prox / mu, 0 if w > 5,   r = pi / prox

Departs from GRPO: rows may be stale, and what the trainer's forward would say of prox is read off the two policies that
are known anyway. A mean over all tokens, no KL.

    python -m experiments.grpo_async --config=configs/asynchronous/interpolated.py
"""

from configs.asynchronous import _start


def get_config(arg: str | None = None):
    config = _start.grpo("interpolated", arg)
    config.algorithm.surrogate = dict(fn=f"{_start.STALE}:interpolated", clip_low=0.2, clip_high=0.2, cap=5.0)
    return config
