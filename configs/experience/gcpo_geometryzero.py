"""GCPO of GeometryZero, group contrastive rewards: arXiv 2506.07160. An aid is paid for where it helps its group.

    R = right + .5 M aid + .1 min(n / cap, 1)
    M = sign(mean right with the aid - mean right without it), 0 unless the group has both

Departs from GRPO: the sign of the auxiliary reward is the group's own contrast; no KL. The aid is an auxiliary
construction there and an equation, "=", in the answer here. n is the length in characters: of the paper's reward of
length only that it favours longer chains is confirmed, its form (linear up to a cap) and weight are ours. Confirmed are
the auxiliary reward and its mask; the weight .5 and a margin of 0 are our choice.

    python -m experiments.grpo --config=configs/experience/gcpo_geometryzero.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("gcpo_geometryzero", arg)
    config.reward.terms = dict(
        right=dict(fn="task"),
        aid=dict(fn="form.pattern", weight=0.0, regex=".*=.*"),
        contrast=dict(fn="rl_jax.rewards.contrast:contrast_bonus", weight=0.5, right="right", uses="aid"),
        length=dict(fn="form.longer", weight=0.1, cap=config.rollout.completion_length, unit="characters"),
    )
    return config
