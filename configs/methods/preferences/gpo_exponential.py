"""GPO with the exponential link: arXiv 2402.05749.

    loss = exp(-beta (u_w - u_l))

Departs from DPO: another convex link of the family, boosting's, which pushes wrong pairs hardest.

    python -m experiments.dpo --config=configs/methods/preferences/gpo_exponential.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("gpo_exponential", arg, link=dict(fn="exponential"))
