"""The runs of the claim configs/papers/staleness_lm.py: one objective each, on rows that are 8 versions old.

    python -m experiments.grpo_async --config=configs/asynchronous/_claim.py:decoupled

Words: an objective of this folder, or `fresh` (GRPO's clip on rows of the newest version); `smoke`. All have the
advantages of GRPO, two updates a batch and a mean over tokens; `aipo` has what its own file says.
"""

from configs import common, grpo_async
from configs.asynchronous import aipo, bypass, decoupled, interpolated

LAG = 8
OBJECTIVES = dict(fresh=bypass, coupled=bypass, decoupled=decoupled, interpolated=interpolated, aipo=aipo)


def get_config(arg: str | None = None):
    words = common.parse(arg, (*OBJECTIVES, "smoke"))
    named = sorted(words & set(OBJECTIVES)) or ["decoupled"]
    if len(named) > 1:
        raise ValueError(f"choose one objective, not {len(named)}: {', '.join(named)}")
    config = OBJECTIVES[named[0]].get_config("smoke" if "smoke" in words else None)
    config.name = "_".join(["staleness", *sorted(words)])
    if "smoke" not in words:
        small(config)
    if "fresh" in words:
        config.flow.update(eta=0, age=0, decode_steps=0)
        return config
    return grpo_async.delayed(config, LAG)


def small(config) -> None:
    """A warm start and a run that take a minute: there are ten starts and fifty runs."""
    config.sft.update(steps=600, eval_every=600)
    config.sft.optimizer.decay_steps = 580
    config.train.update(steps=60)
    config.train.optimizer.update(learning_rate=5e-4, warmup_steps=10, decay_steps=110)
    config.eval.update(every=60, num_prompts=500)
    config.checkpoint.every = 60
    config.flow.measure = False
