"""VAPO, value-based augmented PPO: arXiv 2504.05118.

    A = GAE(lambda_i),   lambda_i = 1 - 1/(.05 n_i);   returns = GAE(lambda = 1)
    l = max(-A r, -A clip(r, 1 - .2, 1 + .28));   loss = 1/(sum_i n_i) sum_i sum_t l_it

Departs from GRPO: a critic, pre-trained for 50 steps, whose advantages look as far ahead as the row is long;
clip-higher, a mean over all tokens, no KL. The paper's imitation loss on right answers is not here.

    python -m experiments.ppo --config=configs/methods/vapo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.ppo("vapo", arg)
    config.algorithm.reward_kl_coef = 0.0
    config.algorithm.surrogate.clip_high = 0.28
    config.critic.advantage = dict(fn="length_adaptive_gae")
    config.critic.warmup_steps *= 5
    return config
