"""WeThink's hybrid reward: arXiv 2506.07905. Rules where an answer can be checked, a model's assessment elsewhere.

    R(q, y) = rule_s(y) if the source s of q can be checked, else assess(q, y) of a frozen model

The dispatcher reads each record's source: boxes and decisions have rules, open sentences go to a language model that
says 1 or 0. Text only; in the paper the assessor is a large model with the reference answer, and a reward of format is
added (config.reward.terms has `form.tags`). Seen to end once, at a smaller size (2 layers of 32, 60 steps, one seed, an
assessor of 150 steps): the assessed reward rose, 0.34 to 0.94, partly on wrong sentences that the assessor let pass;
boxes stayed at 0.28 and screening did not rise (0.72 to 0.53 on 32 prompts).
Arguments: `assessor` (the frozen model, trained on demonstrations that are right or wrong), `smoke`.

    python -m experiments.sft --config=configs/tasks/wethink.py:assessor --workdir=runs/wethink_assessor
    python -m experiments.grpo --config=configs/tasks/wethink.py
"""

from configs import common
from configs.tasks import _toys

TEMPLATE = "{prompt}|{completion}="


def get_config(arg: str | None = None):
    words = common.parse(arg, ("assessor", "smoke"))
    terms = dict(
        boxes=dict(fn="decisions.only", weight=1.0, of="boxes.detection", source="boxes"),
        match=dict(fn="decisions.only", weight=1.0, of="exact.match", source="screening"),
    )
    config = _toys.run("wethink", ("boxes", "screening", "echoes"), terms, prompt=36, completion=72)
    if "assessor" in words:
        of = config.task.to_dict() | dict(kinds=("echoes",))
        asked = dict(problems=0, candidates=0, template=TEMPLATE.replace("completion", "candidate"), alphabet="")
        critic = "rl_jax.tasks.critiqued:verdict"
        config.name, config.task = "wethink_assessor", dict(name="rl_jax.tasks.critiqued:load", of=of, critic=critic)
        config.task.update(asked)
        config.reward.terms = dict(match=dict(fn="exact.match", answer_field="reference"))
        config.rollout.update(completion_length=40, prompt_buckets=(96,))
    else:
        judge = dict(fn="pointwise", path="runs/wethink_assessor", template=TEMPLATE, low=0.0, high=1.0, max_tokens=2)
        config.judge = dict(assessed=judge)
        table = dict(boxes=dict(boxes=1.0), screening=dict(match=1.0), echoes=dict(assessed=1.0))
        config.reward.compose = dict(fn="by_source", table=table)
    return common.smoke(config) if "smoke" in words else config
