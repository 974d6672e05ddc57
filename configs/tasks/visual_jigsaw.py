"""Visual Jigsaw's permutation reward on shuffled lines of text instead of image patches: arXiv 2509.25190.

    python -m experiments.grpo --config=configs/tasks/visual_jigsaw.py

The right order earns 1, another valid permutation of five or more .2 times its share of right positions; the form
<answer>2, 1, 3, 5, 4</answer> earns .2, and without it nothing does. The texts are worked answers of four steps, so of
five lines. So penghao-wu/visual_jigsaw, whose form is a box after the thinking, and which takes .5 from an answer that
repeats a line more than three times. Arguments: `exact` pays for the right order only (discount 0), the limit of the
reward. `smoke`: seconds.
"""

from configs import common
from configs.tasks import gsm8k, mr_rlvr


def get_config(arg: str | None = None):
    words = common.parse(arg, ("exact", "smoke"))
    config = gsm8k.get_config()
    config.name, config.task = "visual_jigsaw", mr_rlvr.task("order", tagged=True, num_steps=4)
    discount = 0.0 if "exact" in words else 0.2
    config.reward.terms = dict(
        order=dict(fn="order.permutation", weight=1.0, extract="tag", discount=discount, least=5),
        form=dict(fn="form.tags", weight=0.2, names=("answer",)),
    )
    config.reward.compose = dict(fn="gate", by="form")
    return common.smoke(config) if "smoke" in words else config
