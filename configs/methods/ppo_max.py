"""PPO-max, "Secrets of RLHF": arXiv 2307.04964.

    R'  = clip(R / (std of all rewards so far), -10, 10)
    r_t = -.05 k1(old_logp, ref_logp), and + R' on the last token
    l_V = max( (V - G)^2, (clip(V, V_old - .2, V_old + .2) - G)^2 ) / 2

Departs from GRPO: as PPO does (ppo.py), with rewards on a scale that does not depend on the reward model, and a critic
that is trained alone for 50 steps first. On a reward model, with the pretraining loss that the paper adds, it is
configs/preferences/rlhf.py:ppo_max.

    python -m experiments.ppo --config=configs/methods/ppo_max.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.ppo("ppo_max", arg)
    config.algorithm.shaping = dict(fn="scaled")
    config.algorithm.trackers.reward_scale = dict(fn="running_moments")
    config.critic.warmup_steps *= 5
    return config
