"""Nash-MD, Nash learning from human feedback: arXiv 2312.00886.

    y ~ pi,  y' ~ pi^(1 - alpha) ref^alpha
    loss = -logp(y) sg(P(y beats y') - 1/2 - beta u(y))

Departs from DPO: a policy gradient on single samples: the reward is the probability of beating a sample of a mixture
with the reference. alpha .125; beta, the paper's tau, .008.

    python -m experiments.online_dpo --config=configs/methods/preferences/nash_md.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    mixture = dict(samples=1, share=0.125, candidates=False)
    online = dict(
        group_size=1, opponents=mixture, candidate_value=dict(fn="win_rate_against"), pair_selection=dict(fn="ranking")
    )
    return _start.online_dpo("nash_md", arg, online=online, responses=1, beta=0.008, compare=dict(fn="nash_md"))
