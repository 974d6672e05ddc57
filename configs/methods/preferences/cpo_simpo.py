"""CPO-SimPO: its official code, 2024; arXiv 2401.08417 and 2405.14734.

    u    = mean_t logp_t
    loss = -log sigma(beta (u_w - u_l) - gamma) - alpha mean_t logp_t(y_w)

Departs from DPO: SimPO with CPO's likelihood term. beta 10, gamma 5.4 and alpha .05, as in its configuration for Llama
3.

    python -m experiments.dpo --config=configs/methods/preferences/cpo_simpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo(
        "cpo_simpo",
        arg,
        reference={},
        length_power=1.0,
        beta=10.0,
        offset=dict(fn="target_margin", margin=5.4),
        regularizer=dict(fn="chosen_token_nll"),
        regularizer_coef=0.05,
    )
