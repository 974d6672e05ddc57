"""VLM-R1's rewards for boxes, on text: arXiv 2504.07615. mAP of a list of boxes, times min(1, due / given).

    python -m experiments.grpo --config=configs/tasks/vlm_r1.py

No image is read: the prompt gives corners and sizes, the answer is a list of boxes. The second factor keeps a policy
from repeating boxes. Arguments: `redundant` leaves it out, and reward/boxes/count shows what happens. `smoke`: seconds.
"""

from configs import common
from configs.tasks import _toys


def get_config(arg: str | None = None):
    words = common.parse(arg, ("redundant", "smoke"))
    terms = dict(boxes=dict(fn="boxes.detection", weight=1.0, over_answer="redundant" not in words))
    config = _toys.run("vlm_r1", ("boxes",), terms, prompt=18, completion=72)
    config.algorithm.kl_coef = 0.04
    return common.smoke(config) if "smoke" in words else config
