"""Asynchronous GRPO with Qwen3-8B on DAPO-Math-17k: sampling at most four versions ahead, AReaL's loss.

    python -m experiments.grpo_async --config=configs/recipes/async_8b.py --workdir=runs/async_8b

A row is at most eight versions old (flow.age; AReaL bounds only how far sampling runs ahead, flow.eta). One process:
four devices train and four sample. Needs pip install -e '.[hub]'. Arguments: `smoke` (a laptop, after
`python -m experiments.tools.tiny_model qwen3`).
"""

from configs import common, grpo_async
from configs.recipes import _start

RECIPE = dict(
    model="Qwen3-8B",
    data="DAPO-Math-17k, `hf://datasets/open-r1/DAPO-Math-17k-Processed`",
    hardware="one host with 8 GPUs of 80 GB, 4 train and 4 sample",
    published="2.77x the speed of synchronous training at the same score; on code data LiveCodeBench v5 58.8 -> 62.0",
    source="arXiv 2505.24298 and AReaL v0.3's release notes (AReaL-boba2-8B-Open)",
    plan=_start.NO_PLAN_OF_GPUS,
    departs="mathematics, not code, so the score does not compare; completions of 8,192 tokens",
)


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    config = grpo_async.of(_start.rl("async_8b", "hf://Qwen/Qwen3-8B", mesh="fsdp:4"), eta=4, age=8, decode_steps=64)
    config.rollout.mesh, config.rollout.devices = "tensor:4", "separate"
    config.task = _start.dapo_math()
    config.reward.terms = dict(right=dict(fn="rl_jax.rewards.mathematics:score", extract="boxed"))
    config.rollout.update(completion_length=8192, prompt_buckets=(1024,))
    config.rollout.engine.slots = 128
    config.algorithm.advantage = dict(fn="group_relative", ddof=1, eps=1e-5)
    config.algorithm.behavior_weight = dict(fn="masked", cap=5.0)
    config.algorithm.update(kl_coef=0.0, measure_kl=False, aggregate=dict(fn="token_mean"))
    config.sample.update(prompts_per_step=64, group_size=8)
    config.train.update(steps=500, minibatches=4, micro_batches=32)
    config.train.optimizer = common.optimizer(learning_rate=1e-6, warmup_steps=40)
    config.score.update(micro_batches=64)
    config.eval.update(every=25, num_prompts=256, batch_size=128)
    config.checkpoint.every = 25
    if "smoke" in words:
        _start.smoke(config, "qwen3", kind="math")
        config.flow.decode_steps, config.rollout.engine.slots = 4, 0
    return config
