"""BCO, binary classifier optimization: arXiv 2404.04656.

    delta = running mean of beta u
    loss  = -log sigma(beta u - delta) if desirable, else -log sigma(delta - beta u)

Departs from DPO: labelled responses and not pairs: a classifier whose logit is the implicit reward less its running
mean. beta .01; without the density ratios of the paper's second part.

    python -m experiments.dpo --config=configs/methods/preferences/bco.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo(
        "bco",
        arg,
        responses=1,
        beta=0.01,
        compare=dict(fn="anchored"),
        batch_stats=dict(fn="bco_anchor"),
    )
