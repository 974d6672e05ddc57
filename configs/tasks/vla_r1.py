"""VLA-R1's rewards for regions and ways, on text: arXiv 2510.01623. GIoU of a box; distance and heading of points.

    python -m experiments.grpo --config=configs/tasks/vla_r1.py

No image is read. A region earns its GIoU. A way earns exp(-Frechet distance), and half of the cosine of its heading:
the paper's measure weighs angles and lengths inside the distance, in a form that is not known to us, so this is our
reading. The form of an answer is the fourth term. Arguments: `smoke`: seconds.
"""

from configs import common
from configs.tasks import _toys


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    terms = dict(
        region=dict(fn="decisions.only", weight=1.0, source="regions", of="boxes.near"),
        way=dict(fn="decisions.only", weight=1.0, source="paths", of="boxes.trajectory", scale=1.0),
        heading=dict(fn="decisions.only", weight=0.5, source="paths", of="boxes.heading"),
        form=dict(fn="form.pattern", weight=0.1, regex=r"\[\d+,\d+,\d+,\d+\]|(\(\d+,\d+\))+"),
    )
    config = _toys.run("vla_r1", ("regions", "paths"), terms, prompt=20, completion=48)
    return common.smoke(config) if "smoke" in words else config
