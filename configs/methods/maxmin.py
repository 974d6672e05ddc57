"""MaxMin-RLHF, the groups' policy: arXiv 2402.08925.

    u = argmin_k mean over the batch of R_k,   A_i = (R_iu - mean_g) / (std_g + 1e-4)

Departs from GRPO: each component of the reward is what one group of people wants (terms of config.reward, a reward
model for each group), and each step ascends that of the group that is worst off. The paper has PPO in place of GRPO;
its clusters of annotators are rl_jax.control.vector.grouped.

    python -m experiments.grpo --config=configs/methods/maxmin.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("maxmin", arg)
    config.algorithm.advantage = dict(fn="worst_component")
    return config
