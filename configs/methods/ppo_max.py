"""PPO-max, "Secrets of RLHF": arXiv 2307.04964.

    R'  = clip(R / (std of all rewards so far), -10, 10)
    r_t = -.02 k1(old_logp, ref_logp), and + R' on the last token
    l_V = max( (V - G)^2, (clip(V, V_old - .2, V_old + .2) - G)^2 ) / 2
    L   = L_PPO + .1 mean over tokens of -log pi(demonstration)

Departs from GRPO: as PPO does (ppo.py), with rewards on a scale that does not depend on the reward model, a critic
that is trained alone for 50 steps first, and a pretraining loss on the task's demonstrations. .02 is the default of
MOSS-RLHF's code; its scripts say .01 and .1. On a reward model it is configs/preferences/rlhf.py:ppo_max.

    python -m experiments.ppo --config=configs/methods/ppo_max.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.ppo("ppo_max", arg)
    config.algorithm.update(reward_kl_coef=0.02, shaping=dict(fn="scaled"))
    config.algorithm.trackers.reward_scale = dict(fn="running_moments")
    config.algorithm.ptx.coef = 0.1
    config.critic.warmup_steps *= 5
    return config
