"""D3PO, direct preference for denoising diffusion policy optimization: arXiv 2311.13231.

    phi(u) = log clip(exp(u), 1 - eps, 1 + eps)
    loss   = -log sigma(beta (phi(u_w) - phi(u_l)))

Departs from DPO: the ratio is clipped, so that a response far from the reference is left alone. eps .1; published for
the single steps of a denoising chain, which a response is here.

    python -m experiments.dpo --config=configs/methods/preferences/d3po.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("d3po", arg, score_map=dict(fn="clipped", epsilon=0.1))
