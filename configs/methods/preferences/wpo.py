"""WPO, weighted preference optimization: arXiv 2406.11827.

    w(y) = exp(mean_t (logp_t - log sum_v pi(v | s_t)^2))
    loss = -sg(min(w(y_w) w(y_l), 1)) log sigma(beta (u_w - u_l))

Departs from DPO: pairs count by how likely the policy is to have written them, as if they were on-policy. beta .01.
The bound of 1 is that of the authors' code (wzhouad/WPO 3353ef6, scripts/run_wpo.py): greedy answers would weigh more.
Whether the paper's text has it is unknown: it was not read.

    python -m experiments.dpo --config=configs/methods/preferences/wpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("wpo", arg, beta=0.01, weight=dict(fn="policy_likelihood", max_weight=1.0))
