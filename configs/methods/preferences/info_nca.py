"""InfoNCA: arXiv 2402.05369.

    loss = -sum_k softmax(R / alpha)_k log softmax(beta u)_k

Departs from DPO: all responses of a prompt at once, with a softmax of their rewards as the target. beta .01.

alpha 1 is ours. The authors' code has the same R / alpha, with alpha 1e-4 on UltraFeedback's scores: the best response
is the whole target (reward_qlora.yaml, cbb9248). Here rewards are 0 to 1, and the best of four gets .38 of it.

    python -m experiments.dpo --config=configs/methods/preferences/info_nca.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("info_nca", arg, responses=4, beta=0.01, compare=dict(fn="info_nca", temperature=1.0))
