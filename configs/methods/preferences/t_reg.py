"""T-REG, token-level reward regularization: arXiv 2412.02685.

    r_t  = sigma(log ref(y_t | better) - log ref(y_t | worse)) - 1/2
    loss = -log sigma(beta (u_w - u_l)) - alpha sg(sigma(beta (u_l - u_w))) beta sum over y, t of r_t logp_t

Departs from DPO: each token has a reward of its own, from what the reference says after an instruction to write a
better and a worse answer, put before the prompt. alpha .25.

    python -m experiments.dpo --config=configs/methods/preferences/t_reg.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo(
        "t_reg",
        arg,
        contrast=dict(better="Write a helpful and harmless answer.", worse="Write a useless and harmful answer."),
        regularizer=dict(fn="token_rewards"),
        regularizer_coef=0.25,
    )
