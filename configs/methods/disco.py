"""DisCO, discriminative constrained optimization: arXiv 2505.12366.

    J = mean_{right} s - tau log mean_{wrong} exp(s / tau),   s = 1/n sum_t logp,   tau = 10
    l = -A logp + sg(1000 [D - 1e-4]+) (old_logp - logp),   A_i = dJ/ds_i,   D = mean(old_logp - logp)

Departs from GRPO: no weight of a prompt by its difficulty; the likeliest wrong answers are pushed down most; a hinge on
the KL to the old policy in place of a clip; no KL to the reference. Equation and numbers: Optimization-AI/DisCO, logL.
The softmax over wrong answers is that before the updates; tau=inf is DisCO-b.

    python -m experiments.grpo --config=configs/methods/disco.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.grpo("disco", arg)
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="rl_jax.advantages.discriminative:disco", tau=10.0)
    config.algorithm.surrogate = dict(fn="rl_jax.losses.policy.hinged:hinged", delta=1e-4, hinge=1e3)
    return config
