"""GCPO of GeometryZero, group contrastive rewards: arXiv 2506.07160. An aid is paid for where it helps its group.

    R = right + .5 M aid,   M = sign(mean right with the aid - mean right without it), 0 unless the group has both

Departs from GRPO: the sign of the auxiliary reward is the group's own contrast; no KL. The aid is an auxiliary
construction there and an equation, "=", in the answer here. Confirmed are the reward and its mask; the weight .5 and a
margin of 0 are our choice, and the reward of length, whose form could not be read, is left out.

    python -m experiments.grpo --config=configs/experience/gcpo_geometryzero.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("gcpo_geometryzero", arg)
    config.reward.terms = dict(
        right=dict(fn="task"),
        aid=dict(fn="form.pattern", weight=0.0, regex="="),
        contrast=dict(fn="rl_jax.rewards.contrast:contrast_bonus", weight=0.5, right="right", uses="aid"),
    )
    return config
