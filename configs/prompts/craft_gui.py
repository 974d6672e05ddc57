"""CRAFT-GUI: arXiv 2508.11360. Tasks on a screen from short to long, and a reward by the kind of each action.

    R = mean over actions of (.2 + .8 * how right its argument is) where the kind is right, 0 elsewhere;
    at draw t only the share .34 + .66 t / T of the tasks with the fewest actions comes

A text stands in for the screen: buttons to tap, words to write, directions to drag, one to three in a task. The paper's
difficulty is the length of a trajectory, as here; its reward's formulas and its judge of answers are not known to us.
--config.sample.prompts.start=1.0 is uniform sampling.

    python -m experiments.grpo --config=configs/prompts/craft_gui.py

Arguments: `mixed` draws from all tasks at once. `smoke`: seconds.
"""

from configs import common
from configs.tasks import _toys


def get_config(arg: str | None = None):
    words = common.parse(arg, ("mixed", "smoke"))
    terms = dict(actions=dict(fn="actions.by_type", weight=1.0))
    config = _toys.run("craft_gui", ("gestures",), terms, prompt=26, completion=44)
    config = common.smoke(config) if "smoke" in words else config
    start = 1.0 if "mixed" in words else 0.34
    config.sample.prompts = dict(fn="staged", column="steps", steps=config.train.steps // 2, start=start)
    return config
