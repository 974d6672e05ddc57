"""Nash-MD with its KL token by token: arXiv 2312.00886, as in TRL 1.13.

    y ~ pi,  y' ~ pi^(1 - alpha) ref^alpha
    loss = -logp(y) sg(P(y beats y') - 1/2) + beta sum_t sg(logp_t - ref_logp_t) logp_t

Departs from DPO: as nash_md; each token answers for its own log-ratio only. alpha .5 and beta .1, TRL's defaults.

    python -m experiments.online_dpo --config=configs/methods/preferences/nash_md_token.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    mixture = dict(samples=1, share=0.5, candidates=False)
    online = dict(
        group_size=1, opponents=mixture, candidate_value=dict(fn="win_rate_against"), pair_selection=dict(fn="ranking")
    )
    compare = dict(fn="nash_md", kl_granularity="token")
    return _start.online_dpo("nash_md_token", arg, online=online, responses=1, compare=compare)
