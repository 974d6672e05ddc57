"""P3O-V2, pairwise PPO with one clip for both answers of a pair: arXiv 2310.00212.

    l_i  = mean_{j != i} 1/2 max(-q_ij w_ij d_ij, -q_ij w_ij clip(d_ij, -.2, .2)),   d_ij = log p_i - log p_j
    q_ij = R'_i - R'_j,   w_ij = clip(p_i p_j, 1/10, 10),   p_i, R'_i as in p3o

Departs from GRPO: as p3o; a pair whose answers have parted by more than .2 nats has no gradient. Equation and numbers:
thwu1/trlx, of its first author; the KL of .05 is V1's, the code has .01.

    python -m experiments.grpo --config=configs/methods/p3o_joint.py
"""

from configs.methods import p3o


def get_config(arg: str | None = None):
    config = p3o.get_config(arg)
    config.name = config.name.replace("p3o", "p3o_joint", 1)
    config.algorithm.surrogate = dict(fn="rl_jax.losses.policy.pairwise:joint", clip=0.2)
    return config
