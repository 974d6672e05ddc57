"""TDPO1, token-level DPO: arXiv 2404.11999.

    SeqKL(y) = sum_t KL(ref(. | s_t) || pi(. | s_t))
    loss     = -log sigma(beta (u_w + SeqKL(y_w) - u_l - SeqKL(y_l)))

Departs from DPO: the forward KL of every position, over the whole vocabulary, is a part of the score.

    python -m experiments.dpo --config=configs/methods/preferences/tdpo1.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("tdpo1", arg, score_map=dict(fn="token_level", coef=1.0, stop_chosen=False))
