"""SALMON, a principle-following reward model: arXiv 2310.05910. Generated lists, to be short or long.

    python -m experiments.reward_model --config=configs/preferences/principles.py --workdir=runs/principles

    loss = -log sigma(r(principle, q, y_w) - r(principle, q, y_l)),   y_w as the principle says

The principle is a line before the question, and half of the principles are negations of the opposite one, so that the
model has to read them. In training a policy, a record's info["judge_prompt"] is what the judge reads: the principle and
the question. Arguments: `order` (numbers that rise or fall), `blind` (the control: the principle is left out. Of two
answers it is right half of the time; of the four that are made here, one reward can like both ends: .84), `smoke`.
"""

from configs import common
from configs.preferences import reward_models


def get_config(arg: str | None = None):
    words = common.parse(arg, ("order", "blind", "smoke"))
    config = reward_models.get_config("smoke" if "smoke" in words else None)
    config.name = "_".join(["principles", *sorted(words & {"order", "blind"})])
    world = "order" if "order" in words else "length"
    config.data = dict(name="principles", world=world, data_dir=common.DATA_DIR)
    if "blind" in words:
        config.data = dict(name="generated", kind="pairs", world=world, data_dir=common.DATA_DIR)
    config.rollout.update(completion_length=24, prompt_buckets=(64,))
    return config
