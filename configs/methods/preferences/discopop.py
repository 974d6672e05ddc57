"""DiscoPOP, the log-ratio modulated loss: arXiv 2406.08414 eq. 5.

    x    = beta (u_w - u_l),  m = sigma(x / tau)
    loss = -(1 - m) log sigma(x) + m exp(-x)

Departs from DPO: a link that a language model found: between logistic and exponential, not monotone. beta and tau
.05.

    python -m experiments.dpo --config=configs/methods/preferences/discopop.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("discopop", arg, beta=0.05, link=dict(fn="discopop", temperature=0.05))
