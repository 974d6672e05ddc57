"""f-DPG, distributional policy gradient for any f-divergence: arXiv 2302.08215. Here Jensen-Shannon.

    p = ref exp(R / beta) / Z,   t = pi / p;   A = -f'(t) - b,   l = -A logp   (JS: f'(t) = log(2 t / (1 + t)))
    Z = mean of P / pi over the prompt's samples so far,   b = mean of the last 1,024 pseudo-rewards -f'

Departs from GRPO: the policy is to become p, and f says what a misfit costs: "kl" covers p, "reverse_kl" is RLHF's KL
penalty, "js" is between the two. No std, sums over tokens, one update per batch. Z, window and f' are naver/disco's;
beta, the weight of the KL in the reward, is .1 by choice.

    python -m experiments.grpo --config=configs/methods/fdpg.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("fdpg", arg, minibatches=1)
    config.algorithm.update(kl_coef=0.0, reward_kl=dict(fn="k1"), reward_kl_coef=0.1)
    config.algorithm.advantage = dict(fn="rl_jax.advantages.divergences:f_dpg", f="js")
    config.algorithm.trackers.baseline = dict(fn="rl_jax.advantages.memory:partitions", f="js")
    config.algorithm.surrogate = dict(fn="reinforce")
    config.algorithm.aggregate = dict(fn="seq_mean_token_sum")
    return config
