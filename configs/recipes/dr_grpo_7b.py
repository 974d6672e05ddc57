"""Dr. GRPO with Qwen2.5-Math-7B on MATH, the minimalist R1-Zero recipe of arXiv 2503.20783 (Oat-Zero).

    python -m experiments.tools.fetch_data math
    python -m experiments.grpo --config=configs/recipes/dr_grpo_7b.py --workdir=runs/dr_grpo_7b --distributed=auto

128 prompts x 8 in minibatches of 16 prompts, completions of 3,000 tokens, no KL, no division by lengths or deviations.
Evaluated on MATH-500. Arguments: `smoke` (a laptop, after `python -m experiments.tools.tiny_model qwen2`).
"""

from configs import common
from configs.recipes import _start

RECIPE = dict(
    model="Qwen2.5-Math-7B",
    data="MATH, 7,474 problems (`fetch_data math`)",
    hardware="TPU v5e-64 (16 hosts); theirs: 8 A100, 27 hours",
    published="AIME 2024 43.3",
    source="arXiv 2503.20783 (abstract); https://github.com/sail-sg/understand-r1-zero",
    plan="`dr_grpo_7b.json`: train 4.0, score 1.2, decode 4.8 of 16 GiB",
    departs="all levels of MATH, not levels 3 to 5, and our instruction, not the Qwen-Math template",
)


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    config = _start.rl("dr_grpo_7b", "hf://Qwen/Qwen2.5-Math-7B", mesh="fsdp:64", several_hosts=True, chat=False)
    config.task = _start.math_words("math")
    config.rollout.update(completion_length=3000, prompt_buckets=(1024,))
    config.algorithm.advantage = dict(fn="group_centered")
    config.algorithm.update(kl_coef=0.0, measure_kl=False, aggregate=dict(fn="seq_mean_token_sum_norm"))
    config.sample.update(prompts_per_step=128, group_size=8)
    config.train.update(steps=500, minibatches=8, micro_batches=2)
    config.train.optimizer = common.optimizer(learning_rate=1e-6)
    config.score.update(micro_batches=8)
    config.eval.update(every=16, num_prompts=500, batch_size=512, top_k=1)
    config.checkpoint.every = 16
    return _start.smoke(config, "qwen2", kind="math") if "smoke" in words else config
