"""MAPL, multi-level aware preference learning: arXiv 2505.12845. Generated lists and instructions about them.

    loss = L_BT + L_intra + L_inter,   L_intra = -log sigma(r(x_w, y) - r(x_l, y))

The same answer y under two prompts, of which it keeps the instructions of x_w better (the response-conditioned
Bradley-Terry of arXiv 2502.00814); L_BT is on the original pairs. L_inter could not be read: ours is Bradley-Terry on
pairs under a prompt of several instructions, which the chosen answer keeps and the rejected one does not. The three are
one shuffled set of equal shares, so their weights are equal. Arguments: `dpo` (the same with log-ratios as rewards, by
experiments.dpo), `original` (the control: those pairs alone), `smoke`.

    python -m experiments.reward_model --config=configs/preferences/mapl.py --workdir=runs/mapl
    python -m experiments.dpo --config=configs/preferences/mapl.py:dpo --workdir=runs/mapl_dpo
"""

from configs import common
from configs.preferences import given, reward_models


def get_config(arg: str | None = None):
    words = common.parse(arg, ("dpo", "original", "smoke"))
    maker = given if "dpo" in words else reward_models
    config = maker.get_config("smoke" if "smoke" in words else None)
    config.name = "_".join(["mapl", *sorted(words & {"dpo", "original"})])
    data = dict(name="instructed", world="length", num_prompts=1_000, instructions=3)
    config.data = dict(**data, parts=("original", "intra", "inter"), data_dir=common.DATA_DIR)
    config.rollout.update(completion_length=24, prompt_buckets=(96,))
    if "dpo" not in words:
        sets = {part: dict(**data, parts=(part,)) for part in ("original", "intra", "inter")}
        config.benchmarks = dict(names=tuple(sets), sets=sets)
    if "original" in words:
        config.data.parts = ("original",)
    return config
