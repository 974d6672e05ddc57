"""A-LoL, advantage leftover lunch: arXiv 2305.14718.

    loss = -mean_k max(0, R_k - V) sg(clip(exp u_k, 1 - eps, 1 + eps)) logp(y_k)

Departs from DPO: an offline policy gradient on rewarded responses with a positive advantage; V is the mean reward of
the prompt's responses, where the paper trains a value head. eps .9. Departs from the official recipe, which drops what
has no positive advantage and samples the rest in proportion to it: here the mean is over all responses.

    python -m experiments.dpo --config=configs/methods/preferences/a_lol.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("a_lol", arg, responses=4, compare=dict(fn="group_advantage_leftover", clip=0.9))
