"""NLPO of RL4LMs, PPO inside a learned action mask: arXiv 2210.01241.

    pi_mask(v | s) ~ pi(v | s) 1[v in the top-p nucleus of psi at s];   psi <- theta after every 5 steps
    PPO with pi_mask in sampling and in every ratio; the KL to the first policy in the reward, its weight adaptive

Departs from GRPO: ppo_adaptive_kl.py with the mask. p = .9, 5 steps and the special tokens that are always in are those
of allenai/RL4LMs, which also keeps at least 100 tokens (of 50,000; here 1 of a few). Its reference is scored without
the mask, ours inside it. Metrics as rewards are terms: reward.terms="{'bleu': {'fn': 'overlap.bleu'}}".

    python -m experiments.ppo --config=configs/experience/nlpo.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.ppo("nlpo", arg)
    config.algorithm.action_mask.update(top_p=0.9, min_tokens=1, every=5)
    config.algorithm.trackers.reward_kl = dict(fn="adaptive_kl", initial=0.1, target=0.1)
    return config
