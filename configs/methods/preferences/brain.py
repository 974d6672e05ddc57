"""BRAIn, Bayesian reward-conditioned amortized inference: arXiv 2402.02479.

    y_k ~ ref
    loss = -sum_k softmax(R / gamma)_k log softmax(u)_k

Departs from DPO: 8 samples of the reference: the posterior's self-normalised weights are the target of the policy's
own. beta is 1, gamma 1; with samples of the prior itself the weights need no further factor.

    python -m experiments.online_dpo --config=configs/methods/preferences/brain.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.online_dpo(
        "brain",
        arg,
        online=dict(group_size=8, share=1.0, pair_selection=dict(fn="ranking")),
        responses=8,
        beta=1.0,
        compare=dict(fn="info_nca", temperature=1.0),
    )
