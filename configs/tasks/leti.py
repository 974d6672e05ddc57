"""LeTI, learning from textual interactions: arXiv 2305.10314. Sums: fine-tuning on good and bad answers, told apart.

    -log p(answer, feedback | token, prompt),   token good if the verifier says so, else bad;   asked with good

The model imitates all its answers, the bad ones with what they were told (here the right result, in the paper the
interpreter's message), each after its token, and is asked with the good one: of demonstrations of which 60 % stop too
early it learns to finish. The loss is on the answer and the feedback; in the paper on the prompt, too.

    python -m experiments.sft --config=configs/tasks/leti.py --workdir=runs/leti

Measured with 600 steps instead of 1,500, seed 0, one run each: 0.690 of 500 held-out sums are right, and 0.352 with
`plain`. Arguments: `plain` (the control: the same answers without tokens), `smoke`. The next round: answers sampled
from the run (rankings.jsonl of experiments.best_of_n) with --config.task.path=FILE and --config.init_from=runs/leti.
"""

from configs import common
from configs.tasks import arithmetic


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke", "plain"))
    config = arithmetic.get_config("smoke" if "smoke" in words else None)
    config.name = "_".join(["leti", *sorted(words & {"plain"})])
    config.rollout.update(completion_length=config.rollout.completion_length + 5, prompt_buckets=(10,))
    if "plain" not in words:
        config.task = dict(name="rl_jax.tasks.conditioned:load", of=config.task.to_dict(), path="")
    return config
