"""DPO on all pairs of a list: the pair-logistic loss of LiPO, arXiv 2402.01878.

    loss = -sum_{psi_i > psi_j} log sigma(beta (u_i - u_j))

Departs from DPO: every pair of a prompt's responses that has an order, in one sum. beta .05. Lists of
4, as the data have; the paper's have 8.

    python -m experiments.dpo --config=configs/methods/preferences/lipo_pairs.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("lipo_pairs", arg, responses=4, beta=0.05, compare=dict(fn="all_pairs"))
