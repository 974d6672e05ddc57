"""LD-DPO, length desensitization: arXiv 2409.06411.

    c_t  = 1 where t <= min(|y_w|, |y_l|), else alpha
    u    = sum_t c_t (logp_t - ref_logp_t)

Departs from DPO: what a response has over the common length counts for less, of policy and reference alike. alpha .5.

    python -m experiments.dpo --config=configs/methods/preferences/ld_dpo.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    return _start.dpo("ld_dpo", arg, token_weight=dict(fn="common_length", alpha=0.5))
