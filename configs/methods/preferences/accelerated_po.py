"""APO, accelerated preference optimization: arXiv 2410.06293.

    pi   <- pi_t + alpha (pi_t - pi_{t-1}) in the space of parameters,  ref <- pi
    loss = -log sigma(beta (u_w - u_l))

Departs from DPO: after each iteration, here 10 steps of online DPO, the policy goes on in the direction that it went,
and becomes the reference. alpha .3.

    python -m experiments.online_dpo --config=configs/methods/preferences/accelerated_po.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.online_dpo(
        "accelerated_po",
        arg,
        online=dict(reference_schedule=dict(fn="extrapolated", rate=0.3, every=10)),
    )
