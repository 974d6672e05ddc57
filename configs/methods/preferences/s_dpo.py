"""S-DPO, softmax DPO: arXiv 2406.09215.

    loss = -log softmax(beta u)_w

Departs from DPO: one chosen response against all of less reward at once. beta 1, as in the official code.

    python -m experiments.dpo --config=configs/methods/preferences/s_dpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("s_dpo", arg, responses=4, beta=1.0, compare=dict(fn="softmax"))
