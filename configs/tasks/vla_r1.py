"""VLA-R1's rewards for regions and ways, on text: arXiv 2510.01623. GIoU of a box; distance and heading of points.

    python -m experiments.grpo --config=configs/tasks/vla_r1.py

    R = .9 task + .1 form;   region: (GIoU + 1) / 2;   way: 1 - min(1, d / (sqrt(2) + .25 pi + .1 log 10))

d is the discrete Frechet distance with the cost |p - q| + .25 angle + .1 |log length ratio|, the angle between the ways
at the two points and the ratio of the steps that follow them, on coordinates from 0 to 1
(GigaAI-research/VLA-R1, robot_bbox_traj_norm.py). No image is read. Arguments: `smoke`: seconds.
"""

from configs import common
from configs.tasks import _toys


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    terms = dict(
        region=dict(fn="decisions.only", weight=0.9, source="regions", of="boxes.near", rescale=True),
        way=dict(fn="decisions.only", weight=0.9, source="paths", of="ways.oriented", size=16.0),
        form=dict(fn="form.pattern", weight=0.1, regex=r"\[\d+,\d+,\d+,\d+\]|(\(\d+,\d+\))+"),
    )
    config = _toys.run("vla_r1", ("regions", "paths"), terms, prompt=20, completion=48)
    return common.smoke(config) if "smoke" in words else config
