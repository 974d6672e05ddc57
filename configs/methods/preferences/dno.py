"""DNO-Prct, direct Nash optimization: arXiv 2404.03715.

    P(y) = mean probability that y beats a sample of the policy
    loss = -log sigma(eta (log pi(y_w) / pi_t(y_w) - log pi(y_l) / pi_t(y_l)))

Departs from DPO: own samples, ranked by win rate, the best and the worst of 5, against the policy that they are from.
eta .1. Departs from DNO-Prct: no better model's answer is among the candidates, and no pair is left out for its margin.

    python -m experiments.online_dpo --config=configs/methods/preferences/dno.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.online_dpo(
        "dno",
        arg,
        online=dict(group_size=5, candidate_value=dict(fn="win_rate"), pair_selection=dict(fn="best_worst")),
        reference=dict(prev=1.0),
    )
