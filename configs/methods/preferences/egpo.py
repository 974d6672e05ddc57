"""EGPO, extragradient preference optimization: arXiv 2503.08942.

    y_1, y_2 ~ ref,  y' ~ the policy after a trial step
    loss = (u_1 - u_2 - (P(y_1 beats y') - P(y_2 beats y')) / beta)^2

Departs from DPO: online IPO, whose samples are the reference's and whose judge is the policy as opponent; each step is
made twice, the second time from the same point against the opponent that the first one led to. beta .1.

    python -m experiments.online_dpo --config=configs/methods/preferences/egpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    opponents = dict(samples=1, share=0.0, candidates=False)
    online = dict(share=1.0, opponents=opponents, candidate_value=dict(fn="win_rate_against"), extragradient=True)
    config = _start.online_dpo("egpo", arg, online=online, beta=1.0, link=dict(fn="square", target=0.0))
    config.algorithm.offset = dict(fn="reward_gap", eta=10.0)
    return config
