"""CODPO of CGPO, DPO under constraints: arXiv 2409.20370. The best answer that all judges pass against a bad one.

    y_1 .. y_4 ~ pi;   w = argmax_{J = 1} r,   l = argmin_{J = 0} r   (of all, if all pass)
    loss = -log sigma(beta (u_w - u_l)) - lambda / |y_w| logp(y_w)

Departs from DPO: a mixture of judges (config.reward.compose) says which of the policy's own answers may be chosen; a
prompt without one is left out. Judges here are rules: not empty, no doubled sign. lambda 5, beta .1 and 4 answers are
huggingface/trl's pull request 2190, not the paper's, whose numbers could not be read.

    python -m experiments.online_dpo --config=configs/methods/preferences/codpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    pair = dict(fn="rl_jax.selection.constraints:codpo_pair")
    slots = dict(regularizer=dict(fn="chosen_nll", reduce="mean"), regularizer_coef=5.0)
    config = _start.online_dpo("codpo", arg, online=dict(group_size=4, pair_selection=pair), **slots)
    return _start.constrained(config)
