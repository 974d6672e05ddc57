"""REINFORCE++-baseline: arXiv 2501.03262.

    A_it = R_i - mean_g, then (A - mean A) / sqrt(var A + 1e-8) over the tokens of the batch
    loss = 1/(sum_i n_i) sum_i sum_t ( max(-A r, -A clip(r, 1 - .2, 1 + .2)) + .01 k2(logp, ref_logp) )

Departs from GRPO: the scale is the whole batch's and not the group's; k2, which has the gradient of KL(pi || ref); a
mean over all tokens.

    python -m experiments.grpo --config=configs/methods/reinforce_pp_baseline.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("reinforce_pp_baseline", arg)
    config.algorithm.update(kl=dict(fn="k2"), kl_coef=0.01)
    config.algorithm.advantage = dict(fn="reinforce_pp_baseline")
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
