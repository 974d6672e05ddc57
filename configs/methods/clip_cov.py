"""Clip-Cov, "The Entropy Mechanism": arXiv 2505.22617.

    cov_t = (A_t - mean A) (logp_t - mean logp)
    l     = 0 on max(1, 2e-4 N) tokens drawn from those with 1 < cov_t < 5, PPO's clip elsewhere

Departs from GRPO: a few of the tokens that would make the policy surer lose their gradient, which keeps its entropy up;
a mean over all tokens, no KL. On a batch as small as a laptop's it is one token.

    python -m experiments.grpo --config=configs/methods/clip_cov.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("clip_cov", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.token_weight = dict(fn="clip_cov")
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
