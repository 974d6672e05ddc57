"""P3O, pairwise PPO: arXiv 2310.00212, the variant V1, which clips each answer's ratio by itself.

    l_i   = mean_{j != i} max(-q_ij w_j p_i, -q_ij w_j clip(p_i, .8, 1.2)),   p_i = exp(sum_t (logp - old_logp))
    q_ij  = R'_i - R'_j,   w_j = clip(p_j, 1/10, 10),   R'_i = R_i - .05 sum_t k1(old_logp, ref_logp)

Departs from GRPO: rewards count by their differences alone, of all pairs of a group (the paper has groups of two); the
KL in the reward, no std, one ratio per answer, 4 updates on all rows, which keep pairs together. Equation and numbers:
thwu1/rlhf_sac, of its first author, where the KL in q is that of the moment. `p3o_joint` is V2.

    python -m experiments.grpo --config=configs/methods/p3o.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("p3o", arg)
    config.train.update(minibatches=1, epochs=4)  # as many updates as 4 minibatches
    config.algorithm.update(reward_kl_coef=0.05, kl_coef=0.0)
    config.algorithm.advantage = dict(fn="group_centered")
    config.algorithm.surrogate = dict(fn="rl_jax.losses.policy.pairwise:separate", clip_low=0.2, clip_high=0.2)
    return config
