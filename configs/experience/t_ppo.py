"""T-PPO, truncated rollouts that go on in later steps: arXiv 2506.15050.

    each step samples W tokens of every answer; an answer that is over gives its row to a new prompt
    A = EGAE: gae, with V(s_l) = V(s_{l-1}) after the last token of an answer that goes on
    policy: the W newest tokens;   critic: the answers that are over, G = R - sum of their KL

Departs from GRPO: PPO with one row per prompt, which trains before its answers are over. W is half of the longest
answer here. Reviews of the paper confirm EGAE's assumption and that policy and critic learn from different tokens; its
numbers could not be read: lambda, the KL and the clips are those of configs/methods/ppo.py.

    python -m experiments.ppo --config=configs/experience/t_ppo.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.ppo("t_ppo", arg)
    length = config.rollout.completion_length
    config.rollout.window = next(n for n in range(length // 2, 0, -1) if length % n == 0)
    config.sample.prompts_per_step *= config.sample.group_size
    config.sample.group_size = 1
    config.critic.advantage = dict(fn="rl_jax.advantages.truncated:extended_gae", discount=1.0, lam=0.95)
    return config
