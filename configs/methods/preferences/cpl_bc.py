"""CPL with behaviour cloning: arXiv 2310.13639.

    S    = alpha sum_t logp_t
    loss = -log sigma(S_w - S_l) - c mean_t logp_t

Departs from DPO: no reference: the likelihood of both responses holds the policy near the data, in place of a bias.
alpha .1, c 1.

    python -m experiments.dpo --config=configs/methods/preferences/cpl_bc.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo(
        "cpl_bc",
        arg,
        reference={},
        regularizer=dict(fn="behaviour_cloning"),
        regularizer_coef=1.0,
    )
