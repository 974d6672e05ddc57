"""EVOL-RL, evolving without labels: arXiv 2509.15194. A group's own vote is the label, and what is new is worth more.

    R = .5 + .5 u in the majority, -1 + .5 u outside of it, -1 without an answer;   u = 1 for the least similar answer

Departs from GRPO: no label is read; clip .2/.28, an entropy bonus and k3 with .001. Similarity is the overlap of
character n-grams, not of embeddings, and all G answers vote (64 of which 32 are trained in the paper). The task's own
reward is only measured, with weight 0. The entropy bonus of .003 is its README's.

    python -m experiments.grpo --config=configs/experience/evol_rl.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("evol_rl", arg)
    config.algorithm.update(kl_coef=0.001, entropy_coef=0.003)
    config.algorithm.surrogate = dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.28)
    rule = "last_number" if config.task.name == "arithmetic" else "whole"
    config.reward.terms = dict(
        novelty=dict(fn="groups.novelty", rule=rule, characters=True),
        right=dict(fn="task", weight=0.0),
    )
    return config
