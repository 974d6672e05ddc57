"""TDPO2, token-level DPO: arXiv 2404.11999.

    SeqKL(y) = sum_t KL(ref(. | s_t) || pi(. | s_t))
    loss     = -log sigma(beta (u_w + alpha sg(SeqKL(y_w)) - u_l - alpha SeqKL(y_l)))

Departs from DPO: as TDPO1, with a weight, .5, and no gradient through the chosen response's KL.

    python -m experiments.dpo --config=configs/methods/preferences/tdpo2.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("tdpo2", arg, score_map=dict(fn="token_level", coef=0.5))
