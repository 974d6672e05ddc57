"""GTPO, trajectory-based policy optimization: arXiv 2508.03772.

    A_it = w_it (R_i - mean_g - .1 H_i) / max(#conflict tokens, 1), 0 if H_i > .7 nats;   l = -A logp
    w = 0 on prefixes and suffixes that a bad answer shares with a good one, 2 on them in the good one, 1 elsewhere

Departs from GRPO: what good and bad answers have in common is not unlearnt; uncertain answers are left out; neither
ratio nor clip, no std, no KL. Numbers and equation: winstonsmith1897/GTPO; see rl_jax/advantages/conflicts.py.

    python -m experiments.grpo --config=configs/methods/gtpo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("gtpo", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="rl_jax.advantages.conflicts:gtpo", threshold=0.7, entropy_coef=0.1)
    config.algorithm.surrogate = dict(fn="reinforce")
    return config
