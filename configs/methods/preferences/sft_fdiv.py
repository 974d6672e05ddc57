"""SFT of an f-divergence, on the chosen responses alone: arXiv 2507.00018.

    s    = beta log(pi(y_w) / ref(y_w))
    loss = -phi(s),  phi(x) = x - x^2 / 4 (Pearson's); phi(x) = x is SFT

Departs from DPO: nothing is rejected. The reference stays in the gradient, whose weight phi'(s) falls as the policy
leaves it. compare.divergence: total_variation (SFT), pearson, hellinger, reverse_kl, jensen_shannon. The losses are
derived (the docstring of compare.demonstrations says how): the paper's could not be read, nor its beta.

    python -m experiments.dpo --config=configs/methods/preferences/sft_fdiv.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    compare = dict(fn="rl_jax.losses.preference.compare.demonstrations:imitation", divergence="pearson")
    return _start.dpo("sft_fdiv", arg, compare=compare)
