"""DAPO with Qwen2.5-Math-7B on DAPO-Math-17k: verl's reproduction at 7B (test_dapo_7b_math.sh).

    python -m experiments.grpo --config=configs/recipes/dapo_7b.py --workdir=runs/dapo_7b --distributed=auto

Needs pip install -e '.[hub]'. The data are the 14,000 English problems of the deduplicated set. 512 prompts x 16 in
minibatches of 32 prompts, prompts of 2,048 and completions of 8,192 tokens, the last 4,096 punished by .5 at most: verl
punishes by 1 beside scores of 1 and -1, here they are 1 and 0. The cache of its 8,192 rows at once is 18.8 GiB a chip
on v5e-256, which has 16. Arguments: `smoke` (a laptop, after
`python -m experiments.tools.tiny_model qwen2`).
"""

from configs import common
from configs.recipes import _start

RECIPE = dict(
    model="Qwen2.5-Math-7B",
    data="DAPO-Math-17k, `hf://datasets/open-r1/DAPO-Math-17k-Processed`",
    hardware="TPU v5p-256 (128 chips, 32 hosts); theirs: 64 GPUs",
    published="AIME 2024 36.3",
    source="https://github.com/volcengine/verl/blob/main/docs/algo/baseline.md, recipe/dapo/test_dapo_7b_math.sh",
    plan="`dapo_7b.json`: train 9.8, score 1.6, decode 40.1 of 95 GiB",
    departs="dynamic sampling as in the paper (that script has none); evaluated on held-out prompts, not on AIME",
)


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    config = _start.rl("dapo_7b", "hf://Qwen/Qwen2.5-Math-7B", mesh="fsdp:128", several_hosts=True, chat=False)
    config.task = _start.dapo_math()
    config.reward.terms = dict(right=dict(fn="rl_jax.rewards.mathematics:score", extract="boxed"))
    config.rollout.update(completion_length=8192, prompt_buckets=(2048,))
    config.algorithm.advantage = dict(fn="group_relative", ddof=1, eps=1e-6)
    config.algorithm.surrogate = dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.28)
    config.algorithm.shaping = dict(fn="overlong", buffer=4096, penalty=0.5)
    config.algorithm.update(kl_coef=0.0, measure_kl=False, aggregate=dict(fn="token_mean"))
    config.sample.update(prompts_per_step=512, group_size=16)
    config.sample.dynamic_sampling.max_batches = 10
    config.train.update(steps=200, minibatches=16, micro_batches=2)
    config.train.optimizer = common.optimizer(learning_rate=1e-6, warmup_steps=160, weight_decay=0.1)
    config.score.update(micro_batches=32)
    config.eval.update(every=10, num_prompts=256, batch_size=256, top_p=0.7)
    config.checkpoint.every = 10
    if "smoke" in words:
        _start.smoke(config, "qwen2", kind="math")
        config.algorithm.shaping.buffer = 8
    return config
