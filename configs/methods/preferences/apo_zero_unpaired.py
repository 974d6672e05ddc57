"""APO-zero on labelled responses: arXiv 2408.06266, apo_zero_unpaired of TRL.

    r    = beta u
    loss = 1 - sigma(r) if desirable, else sigma(r)

Departs from DPO: labelled responses and not pairs, against 0: KTO without its estimate of the KL.

    python -m experiments.dpo --config=configs/methods/preferences/apo_zero_unpaired.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo(
        "apo_zero_unpaired",
        arg,
        responses=1,
        compare=dict(fn="anchored", anchor=0.0),
        link=dict(fn="saturating"),
    )
