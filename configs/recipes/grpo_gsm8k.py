"""GRPO on GSM8K with Qwen2.5 Instruct, 0.5B or 1.5B, and adapters of rank 32: verl's published baseline.

    python -m experiments.tools.fetch_data math
    python -m experiments.grpo --config=configs/recipes/grpo_gsm8k.py --workdir=runs/grpo_gsm8k

One host: eight chips, or one GPU of 80 GB with --config.mesh="". Arguments:
`small` (0.5B; the default), `medium` (1.5B), `smoke` (a laptop, after `python -m experiments.tools.tiny_model qwen2`).
"""

from configs import common
from configs.recipes import _start

RECIPE = dict(
    model="Qwen2.5-0.5B-Instruct, Qwen2.5-1.5B-Instruct",
    data="GSM8K (`fetch_data math`)",
    hardware='one host: TPU v5e-8, or one GPU of 80 GB with `--config.mesh=""`',
    published="GSM8K test 36.4 -> 54.3 (0.5B); 77.9 (1.5B)",
    source="https://github.com/volcengine/verl/blob/main/docs/algo/baseline.md (GRPO-LoRA)",
    plan="`grpo_gsm8k.json`: train 2.7, score 6.6, decode 1.4 of 16 GiB",
    departs="rank, batch 64 and lengths are those in the name of verl's log; group 5, KL .001, 3e-6 of its examples",
)
MODELS = {"small": "0.5B", "medium": "1.5B"}


def get_config(arg: str | None = None):
    words = common.parse(arg, (*MODELS, "smoke"))
    size = "medium" if "medium" in words else "small"
    config = _start.rl(f"grpo_gsm8k_{size}", f"hf://Qwen/Qwen2.5-{MODELS[size]}-Instruct", mesh="fsdp:8")
    config.task = _start.math_words("gsm8k")
    config.model.lora.update(rank=32, alpha=32.0)
    config.rollout.update(completion_length=1024, prompt_buckets=(512,))
    config.algorithm.advantage = dict(fn="group_relative", ddof=1, eps=1e-6)
    config.algorithm.update(kl_coef=0.001, kl=dict(fn="k3"), aggregate=dict(fn="token_mean"))
    config.sample.update(prompts_per_step=64, group_size=5)
    config.train.update(steps=1750, minibatches=1, micro_batches=5)
    config.train.optimizer = common.optimizer(learning_rate=3e-6)
    config.eval.update(every=50, num_prompts=1319, batch_size=264, top_k=1)
    config.checkpoint.every = 50
    return _start.smoke(config, "qwen2") if "smoke" in words else config
