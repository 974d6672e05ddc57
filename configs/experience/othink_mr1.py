"""GRPO-D of OThink-MR1, a KL that first eases and then grows: arXiv 2503.16081. Explore at first, exploit later.

    loss = GRPO's + beta(s) k3(logp, ref_logp);   beta(s) = mid - (mid - min) s / w for s <= w,  mid = (min + max) / 2
    beta(s) = min + (max - min) (s - w) / (t - w) after it;   w = .3 t,  t the steps of the run,  min = 0,  max = .02

Departs from GRPO: the weight of the KL moves. Equation and numbers (of its geometry task; counting has .04 and .1) are
the paper's. Text in place of images; no weight of the format, which is part of the task's reward.

    python -m experiments.grpo --config=configs/experience/othink_mr1.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("othink_mr1", arg)
    schedule = dict(fn="explore_then_exploit", low=0.0, high=0.02, steps=config.train.steps, share=0.3)
    config.schedules.kl = dict(field="algorithm.kl_coef", **schedule)
    return config
