"""AOT of two sets: arXiv 2406.05882.

    D_i  = i-th smallest u_w - i-th smallest u_l
    loss = -log sigma(beta D_i)

Departs from DPO: chosen and rejected scores are compared rank by rank over the whole batch; no pair is needed, only
as many of each.

    python -m experiments.dpo --config=configs/methods/preferences/aot_unpaired.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo(
        "aot_unpaired",
        arg,
        beta=0.01,
        compare=dict(fn="sorted_unpaired"),
        batch_stats=dict(fn="aot_partners", paired=False),
    )
