"""PPO with a critic: arXiv 1707.06347, for language models arXiv 1909.08593.

    r_t  = -.05 k1(old_logp, ref_logp), and + R on the last token;   A, G = GAE(r, V, lambda = .95), A whitened
    l    = max(-A r, -A clip(r, 1 - .2, 1 + .2))
    l_V  = max( (V - G)^2, (clip(V, V_old - .2, V_old + .2) - G)^2 ) / 2

Departs from GRPO: a second network says what each token was worth, where GRPO compares whole answers; the KL in the
reward; a mean over all tokens; 4 epochs.

    python -m experiments.ppo --config=configs/methods/ppo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    return _start.ppo("ppo", arg)
