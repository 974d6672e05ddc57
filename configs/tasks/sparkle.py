"""SPARKLE, what reinforcement learning improves: arXiv 2506.04723. Sums asked with a plan, with facts, in parts.

    python -m experiments.grpo --config=configs/tasks/sparkle.py --workdir=runs/sparkle
    python -m experiments.grpo --config=configs/tasks/sparkle.py:partial --config.init_from=runs/sparkle \\
        --workdir=runs/sparkle_partial
    python -m experiments.tools.sparkle runs/sparkle/sft runs/sparkle runs/sparkle_partial

The warm start sees all ways of asking (rl_jax.tasks.axes), GRPO the plain one; `partial` is the second stage, on sums
with the first half of their steps. The last command compares the runs: accuracy by way of asking, the gain by plan and
by knowledge, the share of subproblems that are solved, and of problems of which all are. Departs from the paper: sums
and rules for competition mathematics and plans that a language model wrote; which sums are hard is not measured.
"""

from configs import common
from configs.tasks import arithmetic


def get_config(arg: str | None = None):
    words = common.parse(arg, ("partial", "smoke"))
    config = arithmetic.get_config("smoke" if "smoke" in words else None)
    config.name = "_".join(["sparkle", *sorted(words & {"partial"})])
    config.task = dict(name="rl_jax.tasks.axes:load", of=config.task.to_dict())
    config.task.train_arms = ("partial",) if "partial" in words else ("plain",)
    config.task.test_arms = ("plain",)
    config.rollout.update(prompt_buckets=(48,))
    return config
