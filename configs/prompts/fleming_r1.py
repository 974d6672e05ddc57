"""Fleming-R1: arXiv 2509.15279. Multiple choice in two stages: all questions, then those that are rarely answered.

    R = 1 for the right letter and no other;   after half of the steps p(question) = 0 where its success is .5 or more

A file of yours has the questions, with a letter as `answer`: one JSON object per line, as in docs/pages/tasks.md. The
paper's are medical, after a cold start on worked answers (the column `completion`); its threshold is not known, .5 is
ours.

    python -m experiments.grpo --config=configs/prompts/fleming_r1.py
        --config.task.path=QUESTIONS.jsonl --config.model.path=FOLDER

Arguments: `scratch` trains a small model from nothing, `lora` adapters, as in configs/task.py.
"""

from configs import common, task


def get_config(arg: str | None = None):
    common.parse(arg, ("scratch", "lora"))
    config = task.get_config(arg)
    config.name = "fleming_r1"
    config.reward.terms = dict(right=dict(fn="exact.choice", weight=1.0))
    config.sample.prompts = dict(fn="hard_later", steps=config.train.steps // 2, below=0.5)
    return config
