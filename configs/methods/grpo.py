"""GRPO, group-relative policy optimization: arXiv 2402.03300.

    A_i  = (R_i - mean_g) / (std_g + 1e-6)
    l_it = max(-A r, -A clip(r, 1 - .2, 1 + .2)) + .04 k3(logp, ref_logp)
    loss = 1/B sum_i 1/n_i sum_t l_it

Departs from GRPO: nothing, this is the one that the others are compared with. DeepSeekMath updates once a batch, where
every ratio is 1; here it is 4 times, for the clip to have something to do.

    python -m experiments.grpo --config=configs/methods/grpo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    return _start.grpo("grpo", arg)
