"""AIPO on stale rows, LlamaRL: arXiv 2505.24034.

    l = -sg(min(pi / mu, 2)) A logp,   A = R - mean_g

Departs from GRPO: rows may be stale; the ratio is to mu, the policy that drew each token, and only its upper end is cut
off (the paper: from 2 to 10); no proximal policy, no clip, no division by the group's std; sums over tokens; no KL.

    python -m experiments.grpo_async --config=configs/asynchronous/aipo.py
"""

from configs.asynchronous import _start


def get_config(arg: str | None = None):
    config = _start.grpo("aipo", arg)
    config.algorithm.advantage = dict(fn="group_centered")
    config.algorithm.surrogate = dict(fn="aipo", ratio_max=2.0)
    config.algorithm.aggregate = dict(fn="seq_mean_token_sum")
    return config
