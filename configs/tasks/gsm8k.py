"""GRPO on word problems in the form of GSM8K, with the exact verifier of mathematics.

    python -m experiments.grpo --config=configs/tasks/gsm8k.py

The problems are generated, two steps each, and the model is a small one of bytes, fine-tuned on some worked answers
first. Arguments: `real` takes GSM8K (MIT; `python -m experiments.tools.fetch_data math`, or another folder as
--config.task.path), which wants a pretrained model: --config.model.path=FOLDER --config.sft.steps=0. `smoke`.
"""

from configs import common


def task(kind: str) -> dict:
    """config.task: the keywords of rl_jax.tasks.word_problems.load."""
    return dict(
        name="word_problems",
        kind=kind,
        path="",  # "": generated
        num_problems=8_000,
        seed=0,
        instruction=False,
        max_prompt_bytes=111,
        max_completion_bytes=40,
        backend="exact",
        skip_bad_records=False,
        data_dir=common.DATA_DIR,
    )


def get_config(arg: str | None = None, kind: str = "gsm8k"):
    words = common.parse(arg, ("real", "smoke"))
    config = common.base(kind)
    config.task = task(kind)
    config.model = common.transformer(
        embed_dim=96, num_layers=4, num_heads=4, num_kv_heads=4, head_dim=24, mlp_dim=288, tied_head=False
    )
    config.rollout.update(completion_length=32, prompt_buckets=(112,))
    config.sft.update(steps=600, batch_size=64, eval_every=200)
    config.sft.optimizer = common.optimizer(
        learning_rate=2e-3, warmup_steps=20, decay_steps=580, final_fraction=0.05, weight_decay=0.1
    )
    config.train.update(steps=100)
    config.sample.update(prompts_per_step=32, group_size=8)
    config.train.optimizer = common.optimizer(learning_rate=3e-4, warmup_steps=10, decay_steps=90, final_fraction=0.1)
    config.eval.update(every=25, num_prompts=512, batch_size=256)
    config.checkpoint.every = 25
    if "real" in words:
        # Two records of the training file of MATH have no answer, and two an empty one.
        config.task.update(path=common.real("math"), instruction=True, skip_bad_records=kind == "math")
        config.task.update(max_prompt_bytes=2047, max_completion_bytes=1023)
        config.rollout.update(completion_length=1024, prompt_buckets=(256, 512, 1024, 2048))
        config.eval.update(num_prompts=500, batch_size=100)
        config.train.optimizer.learning_rate = 1e-6
    return common.smoke(config) if "smoke" in words else config
