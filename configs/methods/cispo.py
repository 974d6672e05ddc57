"""CISPO, clipped importance-sampling weights, MiniMax-M1: arXiv 2506.13585.

    l    = -sg(min(r, 5)) A logp
    loss = mean over prompts of  1/(tokens of the group) sum_i sum_t l_it

Departs from GRPO: the weight is clipped and not the update, so no token loses its gradient; a mean over the tokens of a
group; no KL. The paper names no bound; 5 is ScaleRL's (arXiv 2510.13786).

    python -m experiments.grpo --config=configs/methods/cispo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("cispo", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.surrogate = dict(fn="cispo")
    config.algorithm.aggregate = dict(fn="group_token_mean")
    return config
