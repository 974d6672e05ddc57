"""ORPO, odds ratio preference optimization: arXiv 2403.07691.

    p    = exp(mean_t logp_t)
    loss = -mean_t logp_t(y_w) - lambda log sigma(log p_w / (1 - p_w) - log p_l / (1 - p_l))

Departs from DPO: no reference, odds of the mean likelihood, and the likelihood of the chosen response as the main
term. lambda .1.

    python -m experiments.dpo --config=configs/methods/preferences/orpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    config = _start.dpo("orpo", arg, reference={}, length_power=1.0, beta=1.0, score_map=dict(fn="log_odds"))
    config.algorithm.weight = dict(fn="constant", value=0.1)
    config.algorithm.regularizer = dict(fn="chosen_nll", reduce="mean")
    config.algorithm.regularizer_coef = 1.0
    return config
