"""P3O, pairwise PPO: arXiv 2310.00212, the variant that clips each answer's ratio by itself.

    R'_i = R_i - .05 sum_t k1(old_logp, ref_logp);   A_i = 1/2 mean_{j != i} (R'_i - R'_j)
    l    = max(-A_i p_i, -A_i clip(p_i, .8, 1.2)),   p_i = exp(sum_t (logp - old_logp))

Departs from GRPO: rewards count by their differences alone, of all pairs of a group (the paper has groups of two); the
KL in the reward, no std, one ratio per answer. Confirmed is the gradient alone: the form of the clip and the numbers
could not be read; the variant that clips both answers' ratios jointly is left out.

    python -m experiments.grpo --config=configs/methods/p3o.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("p3o", arg)
    config.algorithm.update(reward_kl_coef=0.05, kl_coef=0.0)
    config.algorithm.advantage = dict(fn="rl_jax.advantages.complexity:pairwise")
    config.algorithm.surrogate = dict(fn="product_ratio_clip")
    return config
