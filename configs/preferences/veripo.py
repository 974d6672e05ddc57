"""VerIPO, verifier-guided iterative policy optimization: arXiv 2505.19000. The three stages of a loop, on worked sums.

    GRPO  ->  a verifier reads 8 rollouts of each training prompt and makes pairs  ->  DPO on them  ->  GRPO  ->  ...

    python -m experiments.tools.veripo --workdir=runs/veripo

The chosen answer is the best of its prompt, right by right steps if there is one; rejected are one that is wrong and
one that is right by wrong steps (rl_jax.preferences.verified), so that DPO teaches what GRPO's reward does not see.
Departs from the paper: sums
for videos, arithmetic for its verifier, no length in the choice of pairs. Arguments: `grpo`, `sample` or `dpo`, the
config of one stage; `smoke`.
"""

from configs import common
from configs.methods import grpo
from configs.preferences import best_of_n, given

STAGES = ("grpo", "sample", "dpo")


def get_config(arg: str | None = None):
    words = common.parse(arg, (*STAGES, "smoke"))
    if len(words & set(STAGES)) > 1:
        raise ValueError(f"choose one stage, not {len(words & set(STAGES))}: {', '.join(sorted(words & set(STAGES)))}")
    config, smoke = grpo.get_config("smoke" if "smoke" in words else None), "smoke" in words
    config.train.steps = 4 if smoke else 100
    if "sample" in words:
        config.program = "best_of_n"
        sizes = dict(num_prompts=1024, samples=8, sizes=(1, 8), batch_size=64)
        sizes = dict(num_prompts=32, samples=4, sizes=(1,), batch_size=16) if smoke else sizes
        config.best_of_n = best_of_n.best_of_n(split="train", **sizes)
    if "dpo" in words:
        rl, config = config, given.get_config("smoke" if smoke else None)
        config.task.alphabet, config.model, config.sft.steps = "0123456789+-=", rl.model, 0
        config.rollout.update(completion_length=rl.rollout.completion_length, prompt_buckets=(16,))
    config.name = "_".join(["veripo", *sorted(words)])
    return config
