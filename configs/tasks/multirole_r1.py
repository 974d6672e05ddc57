"""MultiRole-R1, accuracy and diversity for questions with several views: arXiv 2507.20187.

    python -m experiments.grpo --config=configs/tasks/multirole_r1.py

A right answer earns 1; only then the share of word pairs that no other answer of the group has, and the number of
different roles that speak ("as a cook"), earn up to .25 each. The paper's weights and measures are not known to us:
these are our reading, and with weights of 0 it is GRPO on the accuracy. Arguments: `accuracy` is that. `smoke`:
seconds.
"""

from configs import common
from configs.tasks import _toys


def get_config(arg: str | None = None):
    words = common.parse(arg, ("accuracy", "smoke"))
    weight = 0.0 if "accuracy" in words else 0.25
    terms = dict(
        right=dict(fn="exact.match", weight=1.0, extract="tag"),
        different=dict(fn="groups.distinct_ngrams", weight=weight, n=2),
        roles=dict(fn="groups.roles", weight=weight, most=3),
    )
    config = _toys.run("multirole_r1", ("views",), terms, prompt=24, completion=80)
    config.reward.compose = dict(fn="gate", by="right", threshold=1.0)
    return common.smoke(config) if "smoke" in words else config
