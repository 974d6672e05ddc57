"""KL-Cov, "The Entropy Mechanism": arXiv 2505.22617.

    cov_t = (A_t - mean A) (logp_t - mean logp)
    l     = -A r + |logp - old_logp| on the max(1, 2e-4 N) tokens of the largest cov_t, -A r elsewhere

Departs from GRPO: no clip; the few tokens that would make the policy surer are held near where they were; a mean over
all tokens, no KL to the reference. 2e-4 is verl's default and the authors' k for 32B (32b_kl_cov.sh); for 7B they take
2e-3 (7b_kl_cov.sh), each with a weight of 1.

    python -m experiments.grpo --config=configs/methods/kl_cov.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("kl_cov", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.surrogate = dict(fn="kl_cov")
    config.algorithm.token_selection = dict(fn="top_covariance")
    config.algorithm.aggregate = dict(fn="token_mean")
    return config
