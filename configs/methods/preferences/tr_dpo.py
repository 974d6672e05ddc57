"""TR-DPO, trust region DPO with soft updates: arXiv 2404.09656.

    ref  <- (1 - alpha) ref + alpha pi
    loss = -log sigma(beta (u_w - u_l))

Departs from DPO: the reference follows the policy, here every 10 steps of online DPO, with alpha .6.

    python -m experiments.online_dpo --config=configs/methods/preferences/tr_dpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.online_dpo(
        "tr_dpo",
        arg,
        online=dict(reference_schedule=dict(fn="moving_average", rate=0.6, every=10)),
    )
