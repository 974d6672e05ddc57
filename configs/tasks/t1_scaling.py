"""T1: many hot samples, an entropy bonus, penalties for bad text, and a KL to a moving reference: arXiv 2501.11651.

    python -m experiments.grpo --config=configs/tasks/t1_scaling.py

32 samples per prompt (64 in the paper) at temperature 1.2; rewards less the mean of the others; -1 each for a share of
repeated 3-grams, for garbled characters and for a completion near its limit; the reference is a moving average of the
policy ("dynamic anchor"). The coefficients of bonus, penalties, KL and average are our reading. Arguments: `fixed`
keeps the reference, `plain` leaves the penalties out. `smoke`: seconds.
"""

from configs import common
from configs.tasks import gsm8k


def get_config(arg: str | None = None):
    words = common.parse(arg, ("fixed", "plain", "smoke"))
    config = gsm8k.get_config()
    config.name = "t1_scaling"
    config.rollout.temperature = 1.2
    config.sample.update(prompts_per_step=8, group_size=32)
    config.algorithm.update(entropy_coef=0.001, kl_coef=0.01)
    config.algorithm.advantage = dict(fn="leave_one_out")
    if "fixed" not in words:
        config.algorithm.reference_schedule = dict(fn="moving_average", rate=0.05, every=1)
    if "plain" not in words:
        config.reward.terms = dict(
            right=dict(fn="task", weight=1.0),
            repeated=dict(fn="form.repetition", weight=1.0, n=3, unit="words"),
            garbled=dict(fn="form.garbled", weight=1.0),
            overlong=dict(fn="form.overlong", weight=1.0, limit=32, buffer=4, unit="characters"),
        )
    return common.smoke(config) if "smoke" in words else config
