"""MM-DPO, dynamic reward scaling of MM-RLHF: arXiv 2502.10391.

    beta' = beta (1 + w (1 - exp(-k (R_w - R_l))))
    loss  = -log sigma(beta' (u_w - u_l))

Departs from DPO: pairs that a reward model sets far apart have a larger beta. w .5, k .5. R is the
grade of generated responses; of pairs that are only ordered 1 and 0, and it is DPO with a larger beta.

    python -m experiments.dpo --config=configs/methods/preferences/mm_dpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("mm_dpo", arg, scale=dict(fn="reward_adapted", weight=0.5, rate=0.5))
