"""GSPO-token, GSPO for advantages that differ from token to token: arXiv 2507.18071.

    s_it = sg(s_i) exp(logp - sg(logp)),   s_i = exp(1/n_i sum_t (logp - old_logp))
    loss = 1/B sum_i 1/n_i sum_t max(-A s_it, -A clip(s_it, 1 - 3e-4, 1 + 4e-4))

Departs from GRPO: the ratio has the completion's value and the token's gradient; no KL. With one advantage a completion
its gradient is GSPO's.

    python -m experiments.grpo --config=configs/methods/gspo_token.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("gspo_token", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.surrogate = dict(fn="gspo_token")
    return config
