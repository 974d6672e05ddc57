"""AOT, alignment by optimal transport, of pairs: arXiv 2406.05882.

    D_i  = i-th smallest of logp(y_w) - logp(y_l), less the i-th smallest of ref_logp(y_w) - ref_logp(y_l)
    loss = -log sigma(beta D_i)

Departs from DPO: policy's and reference's margins are compared rank by rank over the whole batch: dominance of a
distribution.

    python -m experiments.dpo --config=configs/methods/preferences/aot.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("aot", arg, beta=0.01, compare=dict(fn="sorted_pairs"), batch_stats=dict(fn="aot_partners"))
