"""GRPO (arXiv 2402.03300) on generated arithmetic: SFT to a middling accuracy, then RL on the model's own answers.

    make train                                                   # or, the same:
    python -m experiments.grpo --config=configs/arithmetic.py --workdir=runs/arithmetic

Arguments after a colon: `smoke` (a minute), `shuffled` (the wrong-reward control of arXiv 2507.10532).
"""

from configs import common


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke", "shuffled"))
    config = common.base("arithmetic")
    config.task = dict(name="arithmetic", num_operands=(2, 3), digits=2, operators="+-", num_train=20_000, num_test=1_000, worked=True)
    config.model = common.transformer(embed_dim=128, num_layers=3, num_heads=4, num_kv_heads=4, head_dim=32, mlp_dim=384)
    config.rollout.update(completion_length=12, prompt_buckets=(10,))
    config.sft.update(steps=2_000, batch_size=128, eval_every=50, stop_at=0.35)
    config.sft.optimizer = common.optimizer(learning_rate=1e-3, warmup_steps=50)
    config.grpo.update(steps=400, prompts_per_step=64, group_size=8, kl_coef=0.0)
    config.grpo.optimizer = common.optimizer(learning_rate=3e-4, warmup_steps=10)
    config.eval.update(every=50, num_prompts=500, batch_size=500)
    config.checkpoint.every = 50
    if "shuffled" in words:
        config.grpo.shaping = dict(fn="shuffled")
    return common.smoke(config) if "smoke" in words else config
