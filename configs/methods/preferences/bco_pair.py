"""BCO on pairs: arXiv 2404.04656, bco_pair of TRL 0.28.

    delta = running mean of the batches' means of beta u
    loss  = -log sigma(beta u_w - delta) - log sigma(delta - beta u_l)

Departs from DPO: each side against a running mean and not against the other side. A batch counts once, however large
it is.

    python -m experiments.dpo --config=configs/methods/preferences/bco_pair.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo(
        "bco_pair",
        arg,
        beta=0.01,
        compare=dict(fn="anchored"),
        batch_stats=dict(fn="bco_anchor", observations="batches"),
    )
