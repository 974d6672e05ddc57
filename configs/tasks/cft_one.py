"""Critique fine-tuning on one problem: arXiv 2506.03295. Sums.

    python -m experiments.sft --config=configs/tasks/cft_one.py:base --workdir=runs/cft_base
    python -m experiments.sft --config=configs/tasks/cft_one.py --workdir=runs/cft_one

    loss = -log p(critique | problem, candidate),   one problem, 100 candidates

`base` imitates demonstrations of which 60 % stop too early; the second run goes on from it with critiques of candidates
of one problem, and both are asked to solve held-out ones. In the paper the critics are seven language models, here a
rule that checks each step (rl_jax.tasks.critiqued; --config.task.critic=my_module:critic). Arguments: `base`,
`solution` (the control: the right solution of the same problem), `many` (2506.03295's ancestor CFT, 2501.17703:
critiques of 1,000 problems, one candidate each), `smoke`. Sampled candidates: --config.task.path=RANKINGS.jsonl.
"""

from configs import common
from configs.tasks import arithmetic

BASE = "runs/cft_base"


def get_config(arg: str | None = None):
    words = common.parse(arg, ("base", "solution", "many", "smoke"))
    if len(words & {"base", "solution", "many"}) > 1:
        raise ValueError(f"choose one of base, solution, many, not {', '.join(sorted(words - {'smoke'}))}")
    config = arithmetic.get_config("smoke" if "smoke" in words else None)
    config.name = "_".join(["cft_one", *sorted(words & {"base", "solution", "many"})])
    of, load = config.task.to_dict(), dict(name="rl_jax.tasks.critiqued:load")
    config.task = dict(**load, of=of, problems=1, candidates=100, path="", critic="rl_jax.tasks.critiqued:sums")
    config.rollout.update(completion_length=48, prompt_buckets=(24,))
    if "many" in words:
        config.task.update(problems=1_000, candidates=1)
    if words & {"base", "solution"}:
        config.task.update(
            problems=0 if "base" in words else 1,
            candidates=0 if "base" in words else 1,
            critic="rl_jax.tasks.critiqued:" + ("candidate" if "base" in words else "solution"),
            template="{prompt}",
        )
    if "base" not in words:
        config.init_from = BASE
        if "smoke" not in words:
            config.sft.update(steps=100, batch_size=64, eval_every=25)
            config.sft.optimizer = common.optimizer(learning_rate=1e-4, warmup_steps=5)
    return config
