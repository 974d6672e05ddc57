"""CPO, contrastive preference optimization: arXiv 2401.08417.

    loss = -log sigma(beta (logp(y_w) - logp(y_l))) - alpha mean_t logp_t(y_w)

Departs from DPO: no reference, and the likelihood of the chosen responses, a mean over all their tokens in the batch.
alpha 1.

    python -m experiments.dpo --config=configs/methods/preferences/cpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("cpo", arg, reference={}, regularizer=dict(fn="chosen_token_nll"), regularizer_coef=1.0)
