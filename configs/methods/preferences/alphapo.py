"""AlphaPO: arXiv 2501.03884.

    u    = mean_t logp_t
    loss = -log sigma(beta (f(u_w) - f(u_l)) - gamma),  f(u) = (1 - exp(-alpha u)) / alpha

Departs from DPO: SimPO with a bent reward: no reference, means over tokens, a margin. alpha .25, beta 2.5, gamma .1.

    python -m experiments.dpo --config=configs/methods/preferences/alphapo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo(
        "alphapo",
        arg,
        reference={},
        length_power=1.0,
        beta=2.5,
        score_map=dict(fn="alpha_reward", alpha=0.25),
        offset=dict(fn="target_margin", margin=0.1),
    )
