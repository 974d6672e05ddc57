"""PPO with a KL weight that steers the KL: arXiv 1909.08593.

    r_t  = -beta k1(old_logp, ref_logp), and + R on the last token
    beta <- beta (1 + e n / 10000),   e = clip(KL / .1 - 1, -.2, .2),   n completions a step, beta = .05 at first

Departs from GRPO: as PPO does (ppo.py), and the weight of the KL rises while it is above its target, .1 nats a token
(verl's), and falls below it.

    python -m experiments.ppo --config=configs/methods/ppo_adaptive_kl.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.ppo("ppo_adaptive_kl", arg)
    config.algorithm.trackers.reward_kl = dict(fn="adaptive_kl", initial=0.05)
    return config
