"""SLiC-HF, sequence likelihood calibration: arXiv 2305.10425.

    loss = max(0, delta - logp(y_w) + logp(y_l)) - lambda logp(y_w)

Departs from DPO: no reference, a hinge, and the likelihood of the chosen response as a regularizer, with HALOs' delta
1, lambda .1.

    python -m experiments.dpo --config=configs/methods/preferences/slic_hf.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo(
        "slic_hf",
        arg,
        reference={},
        beta=1.0,
        link=dict(fn="hinge", margin=1.0),
        regularizer_coef=0.1,
    )
