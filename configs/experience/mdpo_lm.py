"""MDPO, mirror descent policy optimization, for language models: arXiv 2005.09814.

    L = -mean r A + KL(pi || pi_old) / t_k over the whole vocabulary,   t_k = 1 - (k - 1) / K at step k of K
    10 updates per batch, from pi = pi_old on;   the optimum is pi_old exp(t_k A)

Departs from GRPO: a trust region by a KL instead of a clip; its first update is a plain policy gradient. Advantages
are GRPO's instead of a critic's. t_k and 10 are those of manantomar/Mirror-Descent-Policy-Optimization, on-policy.

    python -m experiments.grpo --config=configs/experience/mdpo_lm.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("mdpo_lm", arg, minibatches=1)
    config.algorithm.mirror_step = 1.0
    config.algorithm.surrogate = dict(fn="importance_sampling")
    config.algorithm.aggregate = dict(fn="token_mean")
    config.train.epochs = 10
    config.train.optimizer.warmup_steps *= 10
    config.train.optimizer.decay_steps *= 10
    config.schedules.step = dict(
        field="algorithm.mirror_step", fn="linear", start=1.0, end=0.0, steps=config.train.steps
    )
    return config
