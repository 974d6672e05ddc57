"""f-DPO with the forward KL: arXiv 2309.16240.

    phi(u) = 1 - exp(-u)
    loss   = -log sigma(beta (phi(u_w) - phi(u_l)))

Departs from DPO: regularised by KL(ref || pi): the score is f'(pi / ref).

    python -m experiments.dpo --config=configs/methods/preferences/fdpo_forward_kl.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("fdpo_forward_kl", arg, score_map=dict(fn="forward_kl"))
