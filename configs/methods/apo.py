"""APO, asymmetric policy optimization: arXiv 2506.21655, its part that needs no images.

    A_i (1 + w_i),   w_i = 1 - 1.00001^-(n_i - mean n of the right answers)+ for a wrong answer, else 0
    + .001 v k3(logp, ref_logp),   v = 1 - exp(-e p) where A > 0, 1 elsewhere;   p: share of right answers

Departs from GRPO: long wrong answers weigh more, and right answers to hard prompts may leave the reference. Equation
and numbers: Indolent-Kawhi/View-R1. p is read from the advantage, which is exact for rewards of 0 and 1.

    python -m experiments.grpo --config=configs/methods/apo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("apo", arg)
    config.algorithm.kl_coef = 0.001
    config.algorithm.advantage = dict(fn="rl_jax.advantages.complexity:apo", base=1.00001)
    config.algorithm.kl = dict(fn="rl_jax.losses.difficulty:shaped_k3")
    return config
