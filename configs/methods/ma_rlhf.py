"""MA-RLHF, PPO over macro actions of 5 tokens: arXiv 2410.02743.

    A_k, G_k = GAE(r_k, V_k, lambda = .95);   r_k = sum of 5 tokens' rewards,   V_k = mean of their values
    l        = max(-A r, -A clip(r, .8, 1.2)) per token, with its action's A;   every V_t of an action learns G_k

Departs from GRPO: PPO's critic, KL in the reward and 4 epochs (configs/methods/ppo.py), with credit assigned to runs of
tokens; advantages are not whitened, as in ernie-research/MA-RLHF, which also averages a run's rewards.

    python -m experiments.ppo --config=configs/methods/ma_rlhf.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.ppo("ma_rlhf", arg)
    config.critic.advantage = dict(fn="rl_jax.advantages.macros:macro_gae", n=5, discount=1.0, lam=0.95)
    config.critic.whiten = False
    return config
