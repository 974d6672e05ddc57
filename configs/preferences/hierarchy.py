"""HERON, a reward model from a hierarchy of weak signals: arXiv 2309.02632. Generated sums.

    y > y' if z_1(y) > z_1(y'); of equal z_1 if z_2(y) > z_2(y') + std(z_2); ...;   loss = -log sigma(r(y) - r(y'))

Signals, the most important first: is the whole answer right, how much of it stands before the first mistake, is it
short. Your own: --config.data.path=RANKINGS.jsonl --config.data.levels=first,second. The paper's reward of code
generation, whose levels have weights, is not here. The model is a judge of experiments.ppo, as any reward model
(docs/pages/judges.md); a policy on MountainCar is configs/control/rewards.py:heron. Arguments: `flat` (the control: the
first signal alone), `smoke`.

    python -m experiments.reward_model --config=configs/preferences/hierarchy.py --workdir=runs/hierarchy
"""

from configs import common
from configs.preferences import reward_models


def get_config(arg: str | None = None):
    words = common.parse(arg, ("flat", "smoke"))
    config = reward_models.get_config("smoke" if "smoke" in words else None)
    config.name = "_".join(["hierarchy", *sorted(words & {"flat"})])
    levels = ("right", "steps", "brevity")
    config.data = dict(name="hierarchy", path="", factor=1.0, data_dir=common.DATA_DIR)
    config.data.levels = levels[:1] if "flat" in words else levels
    return config
