"""V-trace's policy gradient on tokens, without a critic: IMPALA, arXiv 1802.01561.

    l = -sg(rho) A logp,   rho = min(prox / mu, 1),   A = R - mean_g

Departs from GRPO: rows may be stale, and no token weighs more than on-policy. With one reward at the end and the
group's mean for a value, vs_{t+1} - V is the same on all tokens, so that V-trace's own advantage is rho (R - mean_g);
with a critic it is configs/methods/vtrace.py, in experiments.ppo. One update a batch, a mean over all tokens, no KL.

    python -m experiments.grpo_async --config=configs/asynchronous/vtrace.py
"""

from configs.asynchronous import _start


def get_config(arg: str | None = None):
    config = _start.grpo("vtrace", arg, minibatches=1)
    config.algorithm.advantage = dict(fn="group_centered")
    config.algorithm.surrogate = dict(fn="reinforce")
    config.algorithm.behavior_weight = dict(fn="truncated", cap=1.0)
    return config
