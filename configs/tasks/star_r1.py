"""STAR-R1's graded reward for what has changed between two scenes, on text: arXiv 2505.15804.

    python -m experiments.grpo --config=configs/tasks/star_r1.py

Partial credit for the right object, attribute and value, and a price for triples too many (listing all) or too few
(saying nothing). Credits .5, 1.5 and 5 are the paper's by a review of it (its code is not public); the prices of 1 are
our reading, and with prices of 0 it is the credit alone. Its reward of 1 for the form is left out. Scenes are words,
not images. Arguments: `free` takes the prices away. `smoke`: seconds.
"""

from configs import common
from configs.tasks import _toys


def get_config(arg: str | None = None):
    words = common.parse(arg, ("free", "smoke"))
    price = 0.0 if "free" in words else 1.0
    terms = dict(changes=dict(fn="claims.triples", weight=1.0, credits=(0.5, 1.5, 5.0), extra=price, missing=price))
    config = _toys.run("star_r1", ("changes",), terms, prompt=72, completion=112)
    return common.smoke(config) if "smoke" in words else config
