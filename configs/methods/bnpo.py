"""BNPO, Beta normalisation: arXiv 2506.02864.

    A_i  = (R_i - p_g) / Beta(p_g; alpha, beta),   alpha and beta fitted to the pass rates p of the batch
    loss = 1/B sum_i sum_t max(-A r, -A clip(r, 1 - .2, 1 + .28)), and at most -10 A where A < 0

Departs from GRPO: the scale follows where the pass rates lie, between no scale (Dr. GRPO) and the std; clip-higher with
a dual clip at 10; sums over tokens; no KL.

    python -m experiments.grpo --config=configs/methods/bnpo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("bnpo", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="beta_normalized")
    config.algorithm.surrogate = dict(fn="dual_clip", clip_low=0.2, clip_high=0.28, dual_clip=10.0)
    config.algorithm.aggregate = dict(fn="seq_mean_token_sum")
    return config
