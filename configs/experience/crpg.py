"""CRPG of CGPO, a policy gradient under constraints: arXiv 2409.20370. A mixture of judges beside the reward.

    A = R~ - mean of the batch,   R~ = J sigma(r - r_0) max(1 - log(pi / ref) / KL_max, 0),   l = -A logp

Departs from GRPO: an answer that a judge fails earns nothing, whatever its reward; rewards are calibrated by a baseline
response, here a sample of the reference, in the paper the data's; the KL bounds the reward; no std and no group mean;
one update per batch. Judges here are rules (not empty, no doubled sign), KL_max is a choice. See also codpo, crraft.

    python -m experiments.grpo --config=configs/experience/crpg.py
"""

from configs.experience import _start
from configs.methods.preferences._start import constrained


def get_config(arg: str | None = None):
    config = _start.grpo("crpg", arg, minibatches=1)
    config.sample.references = 1
    config.algorithm.advantage = dict(fn="rl_jax.selection.constraints:crpg", kl_max=10.0)
    config.algorithm.surrogate = dict(fn="reinforce")
    config.algorithm.aggregate = dict(fn="token_mean")
    return constrained(config)
