"""f-DPO with an alpha-divergence: arXiv 2309.16240.

    phi(u) = (exp((alpha - 1) u) - 1) / (alpha - 1)
    loss   = -log sigma(beta (phi(u_w) - phi(u_l)))

Departs from DPO: regularised by an alpha-divergence between the reverse KL (1) and the forward KL (0). alpha .5,
where the paper's and TRL's ways of counting agree.

    python -m experiments.dpo --config=configs/methods/preferences/fdpo_alpha.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("fdpo_alpha", arg, score_map=dict(fn="alpha_divergence", alpha=0.5))
