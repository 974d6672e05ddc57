"""DPO, direct preference optimization: arXiv 2305.18290.

    u    = sum_t (logp_t - ref_logp_t)
    loss = -log sigma(beta (u_w - u_l))

Departs from DPO: in nothing; the other methods are compared with it. beta .1 as for dialogue, .5 for summaries in the
paper.

    python -m experiments.dpo --config=configs/methods/preferences/dpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("dpo", arg)
