"""Where the recipes start: a pretrained model at its real size, and the smoke size of the same run on a laptop.

A file of this folder has RECIPE: model, data, hardware, published (a number and what measures it), source, plan
(its stored plan's peaks, or "none" and why) and departs (from the source). docs/pages/recipes.md shows them.
With the word `smoke` a recipe has generated data and a tiny random model of its family, which
`python -m experiments.tools.tiny_model FAMILY` writes. None of them has been run at its real size.
"""

import pathlib

from ml_collections import ConfigDict

from configs import common
from configs.preferences import given
from configs.tasks import gsm8k

TINY = "~/.cache/rl_jax/tiny"  # of experiments.tools.tiny_model
NO_PLAN_OF_GPUS = "none: the TPU compiler plans for TPUs"


def rl(name: str, model: str, *, mesh: str, several_hosts: bool = False, chat: bool = True) -> ConfigDict:
    """A run of experiments.grpo with a pretrained model.

    Args:
      name: of the run.
      model: a repository of the Hub.
      mesh: of the hardware.
      several_hosts: whether that has several hosts; the sampler is then lockstep, which `plan` can plan.
      chat: whether prompts go into the model's chat template.
    """
    config = common.base(name)
    _pretrained(config, model, mesh=mesh, chat=chat)
    if not several_hosts:
        config.rollout.engine.name, config.packing.mode = "continuous", "packed"
    config.algorithm.update(mask_truncated=False)
    config.reward.update(num_workers=16, time_limit_s=5.0)
    return config


def preferences(name: str, model: str, data: dict, *, mesh: str, chat: bool = True) -> ConfigDict:
    """A run of experiments.dpo, one pass over the pairs of a data set.

    Args:
      name: of the run.
      model: a repository of the Hub.
      data: keywords of rl_jax.preferences.load.
      mesh: of the hardware.
      chat: whether prompts go into the model's chat template.
    """
    config = given.base(name)
    _pretrained(config, model, mesh=mesh, chat=chat)
    config.data = data | dict(skip_bad_records=True, data_dir=common.DATA_DIR)
    config.encode.update(truncate="drop", identical="drop")
    config.train.update(data_epochs=1)
    return config


def pairs(path: str, **columns: str) -> dict:
    """config.data of files with a pair per row. columns: field -> its name in the files."""
    return dict(name="jsonl", path=path, kind="pairs", columns=columns, contradictions="keep", test_share=0.01)


def math_words(kind: str) -> dict:
    """config.task: GSM8K or MATH as `fetch_data math` brings them, the answer's form in the prompt."""
    fields = gsm8k.task(kind) | dict(path=common.real("math"), instruction=True, skip_bad_records=True)
    return fields | dict(max_prompt_bytes=2047, max_completion_bytes=4095)


def dapo_math() -> dict:
    """config.task: the English problems of DAPO-Math-17k, each once, as open-r1 has prepared them."""
    return dict(
        name="records",
        path="hf://datasets/open-r1/DAPO-Math-17k-Processed@main/en/*.parquet",
        answer="solution",
        system="Reason step by step, and put the final answer within \\boxed{}.",
        test_share=0.03,
        data_dir=common.DATA_DIR,
    )


def _pretrained(config: ConfigDict, model: str, *, mesh: str, chat: bool) -> None:
    config.model = common.transformer(path=model, chat=chat, dtype="bfloat16", remat="full")
    config.mesh = mesh
    config.score.update(chunk=256)
    config.rollout.long_prompts = "drop"
    config.sft.update(steps=0)
    config.sft.optimizer.learning_rate = 1e-5


def smoke(config: ConfigDict, family: str, *, kind: str = "gsm8k") -> ConfigDict:
    """The same program, method and slots at the smallest size.

    Args:
      config: of the recipe; it is changed.
      family: of experiments.tools.tiny_model.
      kind: of the generated problems, if the task is word problems.
    """
    config.name = f"smoke_{config.name}"
    path = str(pathlib.Path(TINY).expanduser() / family)
    config.model.update(path=path, dtype="float32", remat="none", attention="dot_product")
    config.model.lora.rank = min(config.model.lora.rank, 4)
    config.mesh = config.rollout.mesh = ""
    config.rollout.devices = "shared"
    config.rollout.update(completion_length=16, prompt_buckets=(256,))
    config.score.update(chunk=16, micro_batches=1)
    config.train.update(steps=2, micro_batches=1)
    config.train.optimizer.update(warmup_steps=0, decay_steps=0, hold_steps=0, final_fraction=1.0, decay="cosine")
    config.eval.update(every=0, num_prompts=4, batch_size=4, samples_per_prompt=1, completion_length=0)
    config.checkpoint.every = 2
    config.reward.num_workers = 0
    if "data" in config:
        config.data = given.base("x").data
        config.train.update(batch_size=4, data_epochs=0)
        return config
    config.task = gsm8k.task(kind) | dict(
        num_problems=64, instruction=True, max_prompt_bytes=255, max_completion_bytes=255
    )
    config.train.update(minibatches=min(config.train.minibatches, 2))
    config.sample.update(prompts_per_step=4, group_size=min(config.sample.group_size, 4))
    config.sample.dynamic_sampling.max_batches = min(config.sample.dynamic_sampling.max_batches, 2)
    return config
