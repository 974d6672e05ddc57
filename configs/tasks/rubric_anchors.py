"""Rubrics with veto and saturation (Rubicon): arXiv 2508.12790.

    python -m experiments.grpo --config=configs/tasks/rubric_anchors.py

Letters are scored by criteria: a greeting, a topic and an ending that each record names, and politeness, counted in
"thanks". That last one can be driven up without end; saturation bounds it, and a veto makes a letter with more than one
exclamation mark worth nothing. The paper publishes the means, not their formulas: these are our reading, and without
veto and saturation it is the weighted mean. Arguments: `plain` is that mean, which can be hacked. `smoke`: seconds.
"""

from configs import common
from configs.tasks import _toys


def get_config(arg: str | None = None):
    words = common.parse(arg, ("plain", "smoke"))
    plain = "plain" in words
    polite = dict(name="thanks", fn="rl_jax.rewards.rubrics:count", word="thanks", weight=1.0)
    calm = dict(name="calm", absent="!", weight=0.0)
    criteria = (polite, calm) if plain else (dict(polite, scale=1.0), dict(calm, veto=True))
    terms = dict(rubric=dict(fn="rubrics.score", weight=1.0, criteria=criteria, interactions=()))
    config = _toys.run("rubric_anchors", ("letters",), terms, prompt=16, completion=64)
    return common.smoke(config) if "smoke" in words else config
