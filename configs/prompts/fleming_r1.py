"""Fleming-R1: arXiv 2509.15279. Multiple choice in two stages: all questions, then those that are rarely answered.

    R = 1 for the right letter and no other;   after half of the steps p(question) = 0 where its success is .5 or more

Questions are generated sums. With `own` they are in a file of yours, with a letter as `answer`, one JSON object per
line, as in docs/pages/tasks.md. The paper's are medical, after a cold start on worked answers (the column
`completion`); its threshold is not known, .5 is ours.

    python -m experiments.grpo --config=configs/prompts/fleming_r1.py
    python -m experiments.grpo --config=configs/prompts/fleming_r1.py:own
        --config.task.path=QUESTIONS.jsonl --config.model.path=FOLDER

Arguments: `own` as above; on such a file `scratch` trains a small model from nothing, `lora` adapters, as in
configs/task.py. `smoke`: the generated ones, seconds.
"""

from configs import common, task
from configs.tasks import _toys


def get_config(arg: str | None = None):
    words = common.parse(arg, ("own", "scratch", "lora", "smoke"))
    terms = dict(right=dict(fn="exact.choice", weight=1.0))
    if words & {"own", "scratch", "lora"}:
        config = task.get_config(",".join(sorted(words - {"own"})) or None)
        config.reward.terms = terms
    else:
        config = _toys.run("fleming_r1", ("choices",), terms, prompt=24, completion=24)
        config = common.smoke(config) if "smoke" in words else config
    config.name = "fleming_r1"
    config.sample.prompts = dict(fn="hard_later", steps=config.train.steps // 2, below=0.5)
    return config
