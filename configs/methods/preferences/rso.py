"""RSO, statistical rejection sampling optimization: arXiv 2309.06657.

    P(accept y) = exp((r(y) - max r) / beta_s)
    loss        = max(0, 1 - gamma (u_w - u_l))

Departs from DPO: its pairs are samples of the reference, accepted as if drawn from the optimal policy, in random
order and labelled by their rewards; hinge-norm. beta_s .5 and gamma .05; 8 of 16 samples are accepted, published 8 of
64.

    python -m experiments.online_dpo --config=configs/methods/preferences/rso.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.online_dpo(
        "rso",
        arg,
        online=dict(share=1.0, group_size=16, pair_selection=dict(fn="rejection_sampled", num_samples=8, beta=0.5)),
        beta=0.05,
        link=dict(fn="hinge"),
    )
