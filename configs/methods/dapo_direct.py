"""Direct Advantage Policy Optimization, also called DAPO: arXiv 2412.18279. Steps are fitted to a critic's advantages.

    A_k = V(s_{k+1}) - V(s_k), R after the last step;   l_k = 1/2 (A_k / beta - sum_t in k (logp - old_logp))^2
    V: learned from the answers' own rewards, in a network of its own

Departs from GRPO: PPO's critic and epochs without its clip, whitening and KL; steps end with "=" (arithmetic's running
totals). Confirmed is the square of advantage and log ratio; beta, the 1/2 and equal weights of steps are ours. Each
iteration samples anew here, and the critic starts 10 steps earlier with a square as its loss; the paper's stages,
offline and with Monte Carlo targets, are configs/experience/dapo_direct.py.

    python -m experiments.ppo --config=configs/methods/dapo_direct.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config, ends = _start.ppo("dapo_direct", arg), (15,)  # the id of "=" among arithmetic's characters
    config.algorithm.reward_kl_coef, config.critic.whiten = 0.0, False
    config.algorithm.surrogate = dict(fn="rl_jax.losses.policy.regression:direct_advantage", beta=0.1)
    config.algorithm.token_selection = dict(fn="rl_jax.core.steps:step_ends", separators=ends)
    config.critic.advantage = dict(fn="rl_jax.advantages.stepwise:direct", separators=ends)
    return config
