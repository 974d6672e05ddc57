"""REINFORCE++: arXiv 2501.03262.

    r_t = -.01 k1(old_logp, ref_logp), and + R on the last token;   G_t = sum_{k >= t} r_k
    A_t = (G_t - mean G) / sqrt(var G + 1e-8) over the tokens of the batch
    l   = max(-A r, -A clip(r, 1 - .2, 1 + .2)),   loss = 1/(sum_i n_i) sum_i sum_t l_it

Departs from GRPO: no groups, the whole batch is the baseline and the scale; the KL in each token's reward; a mean over
all tokens.

    python -m experiments.grpo --config=configs/methods/reinforce_pp.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("reinforce_pp", arg)
    config.algorithm.update(reward_kl_coef=0.01, kl_coef=0.0)
    config.algorithm.advantage = dict(fn="reinforce_pp")
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
