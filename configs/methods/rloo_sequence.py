"""RLOO with the completion as the action, TRL's RLOOTrainer: arXiv 2402.14740.

    R'_i = R_i - .05 sum_t k1(old_logp, ref_logp)
    A_i  = R'_i - 1/(G-1) sum_{j != i} R'_j,   p_i = exp(sum_t (logp - old_logp))
    loss = 1/B sum_i max(-A_i p_i, -A_i clip(p_i, 1 - .2, 1 + .2))

Departs from GRPO: the leave-one-out baseline without a std, the KL in the reward, and one ratio a completion: the
product of its tokens'.

    python -m experiments.grpo --config=configs/methods/rloo_sequence.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("rloo_sequence", arg)
    config.algorithm.update(reward_kl_coef=0.05, kl_coef=0.0)
    config.algorithm.advantage = dict(fn="leave_one_out")
    config.algorithm.surrogate = dict(fn="product_ratio_clip")
    return config
