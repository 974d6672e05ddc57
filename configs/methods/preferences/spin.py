"""SPIN, self-play fine-tuning: arXiv 2401.01335.

    y_w ~ data,  y_l ~ pi_t
    loss = -log sigma(beta (log pi(y_w) / pi_t(y_w) - log pi(y_l) / pi_t(y_l)))

Departs from DPO: demonstrations and no judge: the data's completion is always preferred to the policy's own; it ends
where the two are alike.

    python -m experiments.online_dpo --config=configs/methods/preferences/spin.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.online_dpo(
        "spin",
        arg,
        online=dict(group_size=1, data="completion", pair_selection=dict(fn="data_first")),
        reference=dict(prev=1.0),
    )
