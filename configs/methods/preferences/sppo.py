"""SPPO, self-play preference optimization: arXiv 2405.00675.

    P(y) = mean probability that y beats a sample of the policy
    loss = sum over y in {w, l} of (log pi(y) / pi_t(y) - (P(y) - 1/2) / beta)^2 / 2

Departs from DPO: the best and the worst of 5 own samples, each with the win rate as its target, against the policy
they are from. beta .001; K 5; the reference moves after every set of samples, published after each of 3 long
iterations.

    python -m experiments.online_dpo --config=configs/methods/preferences/sppo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.online_dpo(
        "sppo",
        arg,
        online=dict(group_size=5, candidate_value=dict(fn="win_rate"), pair_selection=dict(fn="best_worst")),
        reference=dict(prev=1.0),
        beta=0.001,
        compare=dict(fn="win_rates"),
    )
