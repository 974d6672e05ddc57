"""Length-normalised DPO: Tulu 3, arXiv 2411.15124.

    loss = -log sigma(beta (u_w / |y_w| - u_l / |y_l|))

Departs from DPO: each score is a mean over its tokens, with a beta to match, 5.

    python -m experiments.dpo --config=configs/methods/preferences/ln_dpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("ln_dpo", arg, length_power=1.0, beta=5.0)
