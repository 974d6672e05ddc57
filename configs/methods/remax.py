"""ReMax: arXiv 2310.10505.

    A_t  = sum_{k >= t} r_k - R(greedy answer),   r_t = -.05 k1(old_logp, ref_logp), and + R on the last token
    loss = 1/(sum_i n_i) sum_i sum_t -A logp

Departs from GRPO: the baseline is what the greedy answer to the same prompt earns, one more decoding a prompt; no std,
no ratio; the KL in the reward; one update a batch; a mean over all tokens.

    python -m experiments.grpo --config=configs/methods/remax.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("remax", arg, minibatches=1)
    config.algorithm.update(reward_kl_coef=0.05, kl_coef=0.0)
    config.algorithm.advantage = dict(fn="remax_to_go")
    config.algorithm.surrogate = dict(fn="reinforce")
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
