"""LiPO-lambda, listwise preference optimization: arXiv 2402.01878.

    D_ij = |2^psi_i - 2^psi_j| |1 / ln(1 + rank_i) - 1 / ln(1 + rank_j)|
    loss = -sum_{psi_i > psi_j} D_ij log sigma(beta (u_i - u_j))

Departs from DPO: all pairs of a list, weighted by what their exchange would cost the ranking (LambdaRank). beta .05.
Lists of 4, as the data have; the paper's have 8.

    python -m experiments.dpo --config=configs/methods/preferences/lipo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("lipo", arg, responses=4, beta=0.05, compare=dict(fn="lambda_pairs"))
