"""Adaptive entropy bonus, Skywork-OR1: arXiv 2505.22312.

    c    <- c + .005 where the step's H <= .2, c - .005 elsewhere, within [0, 1]
    loss = 1/(sum_i n_i) sum_i sum_t ( max(-A r, -A clip(r, 1 - .2, 1 + .2)) - c 1[H <= .2] H_t )

Departs from GRPO: an entropy bonus as strong as it takes to keep the entropy at its target, and none above it; a mean
over all tokens, no KL. The bounds of c are TRL's.

    python -m experiments.grpo --config=configs/methods/adaptive_entropy.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("adaptive_entropy", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.trackers.entropy = dict(fn="adaptive_entropy")
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
