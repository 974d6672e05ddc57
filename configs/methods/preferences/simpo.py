"""SimPO, simple preference optimization: arXiv 2405.14734.

    u    = mean_t logp_t
    loss = -log sigma(beta (u_w - u_l) - gamma)

Departs from DPO: no reference, means over tokens, and a margin. beta 2, gamma .5, the official code's defaults.

    python -m experiments.dpo --config=configs/methods/preferences/simpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo(
        "simpo",
        arg,
        reference={},
        length_power=1.0,
        beta=2.0,
        offset=dict(fn="target_margin", margin=0.5),
    )
