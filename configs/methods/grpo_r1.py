"""GRPO as DeepSeek-R1 runs it: arXiv 2501.12948.

    A_i  = (R_i - mean_g) / (std_g + 1e-6)
    l_it = max(-A r, -A clip(r, 1 - 10, 1 + 10)) + .001 k3(logp, ref_logp)
    loss = 1/B sum_i 1/n_i sum_t l_it

Departs from GRPO: a clip so wide that only ratios above 11 feel it, a fortieth of the KL, 16 updates a batch. R1 also
takes the policy as its new reference every 400 steps; here the reference stays.

    python -m experiments.grpo --config=configs/methods/grpo_r1.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("grpo_r1", arg, minibatches=16)
    config.algorithm.surrogate.update(clip_low=10.0, clip_high=10.0)
    config.algorithm.kl_coef = 0.001
    return config
