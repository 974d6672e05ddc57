"""Mixed-R1, a reward for each kind of question: arXiv 2505.24164. Boxes, decisions and open answers in one run.

    python -m experiments.grpo --config=configs/tasks/mixed_r1.py

Each record has a source, and config.reward.compose says which terms count for it: IoU-based mAP for boxes, an exact
match for decisions, BMAS for open sentences (rl_jax.rewards.overlap: on hashed trigrams of words instead of a
tokenizer's table of embeddings). Text only. WeThink's reward (arXiv 2506.07905) is such a table, too: rules where an
answer can be checked, a judge elsewhere. Arguments: `smoke`: seconds.
"""

from configs import common
from configs.tasks import _toys


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    terms = dict(
        boxes=dict(fn="decisions.only", weight=1.0, of="boxes.detection", source="boxes"),
        match=dict(fn="decisions.only", weight=1.0, of="exact.match", source="screening"),
        similar=dict(fn="decisions.only", weight=1.0, of="overlap.bmas", source="echoes"),
    )
    config = _toys.run("mixed_r1", ("boxes", "screening", "echoes"), terms, prompt=36, completion=72)
    table = dict(boxes=dict(boxes=1.0), screening=dict(match=1.0), echoes=dict(similar=1.0))
    config.reward.compose = dict(fn="by_source", table=table)
    return common.smoke(config) if "smoke" in words else config
