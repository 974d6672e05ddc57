"""CPL, contrastive preference learning: arXiv 2310.13639.

    S    = alpha sum_t logp_t
    loss = -log sigma(S_w - lambda S_l)

Departs from DPO: no reference: the regret is read off the policy's log-probs; the worse side counts for less, so that
the data's own actions are preferred. alpha .1, lambda .5.

    python -m experiments.dpo --config=configs/methods/preferences/cpl.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("cpl", arg, reference={}, score_map=dict(fn="biased", bias=0.5))
