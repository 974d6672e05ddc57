"""GRPO-D of OThink-MR1, a KL that grows: arXiv 2503.16081. Explore at first, stay close to the reference later.

    loss = GRPO's + beta(t) k3(logp, ref_logp);   beta(t) = .04 min((t - 1) / T, 1)

Departs from GRPO: the weight of the KL moves, weak at first and strong later. Its course could not be found; a line
over half of the run is our reading. Text in place of images.

    python -m experiments.grpo --config=configs/experience/othink_mr1.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("othink_mr1", arg)
    steps = max(config.train.steps // 2, 1)
    config.schedules.kl = dict(field="algorithm.kl_coef", fn="linear", start=0.0, end=0.04, steps=steps)
    return config
