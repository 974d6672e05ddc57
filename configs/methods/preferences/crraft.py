"""CRRAFT of CGPO, reward-ranked fine-tuning under constraints: arXiv 2409.20370.

    y_1 .. y_4 ~ pi, y_0 ~ ref;   v = J sigma(r - r_0);   best = argmax v of those with u <= KL_max
    loss = -v log pi(best)

Departs from DPO: one answer is trained on, by how much better it is than a baseline, if all judges (rules, as in
codpo.py) pass it and it is not too far from the reference; if there is none, the baseline itself with 1/2, if it
passes. The baseline is a sample of the reference, in the paper the data's response. KL_max 10 is a choice.

    python -m experiments.online_dpo --config=configs/methods/preferences/crraft.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    online = dict(group_size=4, pair_selection=dict(fn="rl_jax.selection.constraints:passing"))
    online |= dict(opponents=dict(samples=1, share=1.0, candidates=True))
    online |= dict(candidate_value=dict(fn="rl_jax.selection.constraints:calibrated"))
    compare = dict(fn="rl_jax.losses.preference.compare.ranked:crraft", kl_max=10.0)
    return _start.constrained(_start.online_dpo("crraft", arg, online=online, responses=5, beta=1.0, compare=compare))
