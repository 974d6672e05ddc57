"""Penalties in a reward of several parts, for decisions on applications: resume_grpo ("custom reward functions").

    python -m experiments.grpo --config=configs/tasks/resume_grpo.py

A right decision earns 1, a wrong "hire" costs .5, and the sum is clipped at -1. The abstract reports that heavy
penalties early in training end in a policy that rejects all; its weights are not known to us, these are our reading.
Arguments: `heavy` makes a wrong hire cost 20, without the clip. `std` divides by the group's standard deviation as GRPO
does, which undoes any weight where a prompt has two outcomes: it hides the collapse. `smoke`: seconds.

Seed 0, 250 steps of SFT and 60 of RL, held-out decisions, from .50 right and .21 wrongly hired (.38 are rejections):
.52 and .26 as it is, .38 and .00 with `heavy`, .60 and .37 with `heavy,std`, as with `std`.
"""

from configs import common
from configs.tasks import _toys


def get_config(arg: str | None = None):
    words = common.parse(arg, ("heavy", "std", "smoke"))
    heavy = "heavy" in words
    terms = dict(
        right=dict(fn="exact.match", weight=1.0),
        wrong_hire=dict(fn="decisions.mistake", weight=-20.0 if heavy else -0.5, said="hire"),
    )
    config = _toys.run("resume_grpo", ("screening",), terms, prompt=24, completion=12)
    config.reward.compose = dict(fn="weighted_sum") if heavy else dict(fn="clip", low=-1.0)
    config.algorithm.advantage = dict(fn="group_relative" if "std" in words else "group_centered")
    return common.smoke(config) if "smoke" in words else config
