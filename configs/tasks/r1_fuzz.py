"""R1-Fuzz, inputs that reach a line of a program: arXiv 2509.20384. The reward is the distance to it.

    reward = 1 / (1 + d)        d = fewest statements between one that the program ran and the target

The program runs on the model's input in the sandbox, traced (rl_jax.rewards.fuzzing). Departs from the paper: generated
programs of two conditions instead of slices of real ones by coverage, a model of characters, and the distance of the
run itself, not against that of a seed input. Arguments: `hit` pays for reaching the line alone. `smoke`: seconds.

    python -m experiments.grpo --config=configs/tasks/r1_fuzz.py
"""

from configs import common
from configs.tasks import _toys


def get_config(arg: str | None = None):
    words = common.parse(arg, ("hit", "smoke"))
    terms = dict(near=dict(fn="fuzzing.distance", weight=1.0))
    config = _toys.run("r1_fuzz", ("fuzz_inputs",), terms, prompt=12, completion=8)
    if "hit" in words:
        config.reward.compose = dict(fn="gate", by="near", threshold=1.0)
    config.reward.time_limit_s = 120.0  # the sandbox has a limit of CPU seconds
    return common.smoke(config) if "smoke" in words else config
