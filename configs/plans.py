"""GRPO at sizes for which pods are booked: experiments.plan plans it, and it runs there.

    python -m experiments.plan --config=configs/plans.py:8b --config.mesh=fsdp:64 --topology=v5e:8x8

Arguments: `1b` (Llama 3.2), `8b` (Llama 3.1), `13b` (Llama 2), `32b` (Qwen3): sizes as in the published config.json,
under experiments/plan/plans/models. Prompts of 1,024 and completions of 3,072 tokens, 64 prompts x 8, bfloat16 over
float32 masters, full rematerialisation, the TPU's splash attention. Another folder: --config.model.path=FOLDER. With
`async` it is a run of experiments.grpo_async, up to two batches ahead, with the masked decoupled loss:

    python -m experiments.plan --config=configs/plans.py:8b,async --config.mesh=fsdp:64 --topology=v5e:8x8 \\
        --sampler_topology=v5e:4x4 --sampler_mesh=data:2,tensor:8 --config.rollout.engine.slots=128
"""

from configs import common, grpo_async
from configs.tasks import hf

MODELS = {"1b": "llama-3.2-1b", "8b": "llama-3.1-8b", "13b": "llama-2-13b", "32b": "qwen3-32b"}


def get_config(arg: str | None = None):
    words = common.parse(arg, (*MODELS, "async"))
    sizes = words - {"async"} or {"8b"}
    if len(sizes) > 1:
        raise ValueError(f"choose one size, not {len(sizes)}: {', '.join(sorted(sizes))}")
    size = sizes.pop()
    config = hf.get_config(None)
    config.name = f"plan_{size}"
    config.model.update(
        path=f"experiments/plan/plans/models/{MODELS[size]}", dtype="bfloat16", remat="full", attention="splash"
    )
    config.rollout.update(completion_length=3072, prompt_buckets=(1024,))
    config.rollout.engine.name, config.packing.mode = "lockstep", "padded"  # the programs that can be planned
    config.score.update(chunk=256, micro_batches=8)  # of the train step's size
    config.sample.update(prompts_per_step=64, group_size=8)
    config.train.update(minibatches=2, micro_batches=4)
    if "async" in words:
        config = grpo_async.of(config)
        config.name += "_async"
        config.algorithm.behavior_weight = dict(fn="masked", cap=5.0)
    return config
