"""R-DPO, DPO that disentangles length: arXiv 2403.19159.

    loss = -log sigma(beta (u_w - u_l) + alpha (|y_w| - |y_l|))

Departs from DPO: a head start for the longer winner, which is then pushed less. alpha .05; the sign follows from the
reward r - alpha |y|.

    python -m experiments.dpo --config=configs/methods/preferences/r_dpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("r_dpo", arg, offset=dict(fn="length", alpha=0.05))
