"""SuperHF, supervised iterative learning from human feedback: arXiv 2310.16763. Best-of-16 fine-tuning with a prior.

    y_1 .. y_16 ~ pi;   y = argmax r
    loss = -1/|y| logp(y) + beta / |y| sum_t KL(ref(. | s_t) || pi(. | s_t))

Departs from DPO: nothing is rejected: each step fine-tunes on the best of the policy's own samples, and the KL over the
whole vocabulary, from the reference, keeps it near. Equation, beta .35 and 16 samples: openfeedback/superhf
(shf_iterative_v1/configs/default.yaml). beta 0 is iterated best-of-n (RAFT).

    python -m experiments.online_dpo --config=configs/methods/preferences/superhf.py
"""

from configs.methods.preferences import _start


def get_config(arg: str | None = None):
    compare = dict(fn="rl_jax.losses.preference.compare.ranked:superhf", kl_coef=0.35)
    online = dict(group_size=16, pair_selection=dict(fn="best"))
    return _start.online_dpo("superhf", arg, online=online, responses=1, compare=compare)
