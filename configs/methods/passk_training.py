"""Pass@k training, in closed form: arXiv 2508.10751.

    rho = 1 - C(n-c, k) / C(n, k),   s = sqrt(rho (1 - rho)),   c of the n = G answers right, k = 4
    A+  = (1 - rho) / s,   A- = (1 - rho - C(n-c-1, k-1) / C(n-1, k-1)) / s

Departs from GRPO: what is optimised is that one of 4 answers is right; prompts that are mostly solved get no gradient,
and wrong answers little blame. k = 1 is GRPO. No KL.

    python -m experiments.grpo --config=configs/methods/passk_training.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("passk_training", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="pass_at_k", k=min(4, config.sample.group_size // 2))
    return config
