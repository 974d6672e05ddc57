"""SALSA: arXiv 2411.01798. PPO's reference is the average of two fine-tuned models.

    ref = (1 - w) theta_1 + w theta_2, w = .5;   r_t = -.05 k1(old_logp, ref_logp), and + R on the last token

Departs from GRPO: PPO, held to a point between the policy's own start theta_1 and a second model theta_2, where rewards
are often higher. theta_2 is another seed's warm start, made first:

    python -m experiments.sft --config=configs/tasks/arithmetic.py --config.seed=1 --workdir=runs/salsa_second
    python -m experiments.ppo --config=configs/experience/salsa.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.ppo("salsa", arg)
    config.algorithm.reference_soup = dict(init_from="runs/salsa_second", weight=0.5)
    return config
