"""TempSamp-R1: arXiv 2509.18056. The right answer is one row of each group, and rewards are shaped softly.

    group = (y_1 .. y_{G-1}, y*);   R' = t + a log(R - t + 1) if R >= t, else t - (e^{b (t - R)} - 1) / (e^b - 1)

Departs from GRPO: one off-policy row a group. R is the IoU of a box in text, in place of that of a stretch of a video:
with rewards of two values the shaping would be affine, which the std of a group takes away. t = .8, a = .01, b = 1 are
our reading of the paper, whose code could not be read.

    python -m experiments.grpo --config=configs/experience/tempsamp_r1.py
"""

from configs import common
from configs.experience import _start
from configs.tasks import _toys


def get_config(arg: str | None = None):
    config = _start.grpo("tempsamp_r1", arg)
    iou = dict(iou=dict(fn="boxes.overlap", weight=1.0))
    toys = _toys.run(config.name, ("regions",), iou, prompt=20, completion=48)
    toys = common.smoke(toys) if "smoke" in config.name else toys
    for name in ("task", "model", "rollout", "sft", "reward", "eval"):
        config[name] = toys[name]
    config.algorithm.shaping = dict(fn="soft_threshold", threshold=0.8, slope_above=0.01, slope_below=1.0)
    config.foreign.answer = dict(fn="demonstrations", at_most=config.sample.group_size, count=1, replace="last")
    return config
