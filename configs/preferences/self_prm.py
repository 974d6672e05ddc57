"""Self-PRM (arXiv 2505.11227): a model judges the steps of its own samples, and best-of-n keeps those it finds right.

    python -m experiments.sft --config=configs/preferences/self_prm.py:model --workdir=runs/self_prm_model
    python -m experiments.best_of_n --config=configs/preferences/self_prm.py

One model solves sums and names the first wrong step of a solution, -1 for none (rl_jax.tasks.self_judged). Its samples
are ranked by its own verdicts; best_of_n.json has best-of-n against the verifier and, in `verdicts`, the precision and
recall of what it keeps, and ProcessBench's F1 on its samples (2412.06559). Of a trained reward model of steps the F1 is
process_bench/f1 of `reward_models.py:steps`, also on ProcessBench's own files (data.name=processbench). The paper's
models learned to judge from RL on problems alone; ours, of characters, is shown verdicts in `model`. Arguments:
`model`; `smoke` (seconds, for CI).
"""

from configs import common
from configs.preferences import best_of_n
from configs.tasks import arithmetic


def get_config(arg: str | None = None):
    words = common.parse(arg, ("model", "smoke"))
    smoke = "smoke" in words
    runs = "runs/smoke_self_prm" if smoke else "runs/self_prm"
    config = arithmetic.get_config("smoke" if smoke else None)
    sums = dict(config.task.to_dict(), digits=2, unfinished_share=0.0)
    config.task = dict(name="rl_jax.tasks.self_judged:load", of=sums)
    config.rollout.update(completion_length=16, prompt_buckets=(32,))
    config.name = f"{runs.removeprefix('runs/')}_model" if "model" in words else runs.removeprefix("runs/")
    if "model" in words:
        return config
    config.program, config.init_from = "best_of_n", f"{runs}_model"
    config.best_of_n = best_of_n.best_of_n(split="problems")
    config.judge = dict(own=dict(fn="first_wrong_step", path=f"{runs}_model"))
    if smoke:
        config.best_of_n.update(num_prompts=8, samples=4, sizes=(1, 2, 4), batch_size=4)
    return config
