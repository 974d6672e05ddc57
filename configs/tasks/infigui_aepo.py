"""InfiGUI-G1 (AEPO), exploring clicks, on text: arXiv 2508.05731. An answer may name several points.

    python -m experiments.grpo --config=configs/tasks/infigui_aepo.py

The first right one of N points with rank k earns 1 / sqrt(N k), none at all -1 / N, points on a line -1; RLOO, groups
of 8, clip-higher .4 and no KL as published (its script makes one update a batch, as here,
at which no clip does anything). No screen is read: a button's place must be found by trying, and half of
the demonstrations look in the wrong corner. Arguments: `single` pays for one point, right or wrong. `smoke`: seconds.
"""

from configs import common
from configs.tasks import _toys


def get_config(arg: str | None = None):
    words = common.parse(arg, ("single", "smoke"))
    explore = dict(fn="boxes.exploring_click", think=False)
    terms = dict(click=dict(explore, weight=1.0))
    if "single" in words:
        terms = dict(hit=dict(fn="boxes.click", weight=1.0), click=dict(explore, weight=0.0))
    config = _toys.run("infigui_aepo", ("clicks",), terms, prompt=12, completion=64)
    config.algorithm.advantage = dict(fn="leave_one_out")
    config.algorithm.surrogate.clip_high = 0.4
    return common.smoke(config) if "smoke" in words else config
