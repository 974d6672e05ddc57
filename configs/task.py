"""Your own prompts and your own reward, on a pretrained model: the config to begin with.

    python -m experiments.grpo --config=configs/task.py --config.task.path=PROMPTS.jsonl --config.model.path=FOLDER \\
        --config.reward.function=my_rewards:score --workdir=runs/mine

A line of PROMPTS.jsonl is {"prompt": "...", "answer": "..."}: docs/pages/tasks.md has chats, columns of other names,
Parquet, several sources. FOLDER is a Hugging Face folder. Without a reward, a completion is right if it is the answer.
Arguments: `ppo`, `online_dpo` and `best_of_n` are for the programs of these names; sft and evaluate take any of them.
`lora` trains adapters instead of the model. `scratch` needs no folder: a small model of bytes, fine-tuned on the
completions of the file first. `smoke`: the same on generated sums, seconds.
"""

from ml_collections import ConfigDict

from configs import common, ppo_common
from configs.preferences import best_of_n, online

PROGRAMS = ("ppo", "online_dpo", "best_of_n")


def task() -> dict:
    """config.task: the keywords of rl_jax.tasks.records.load."""
    return dict(
        name="records",
        path="",
        test_path="",
        sources=dict(),
        prompt="prompt",
        answer="answer",
        completion="completion",
        source="source",
        test_share=0.1,
        system="",
        tokenizer_path="",
        skip_bad_records=False,
        data_dir=common.DATA_DIR,
    )


def get_config(arg: str | None = None) -> ConfigDict:
    words = common.parse(arg, (*PROGRAMS, "lora", "scratch", "smoke"))
    named = sorted(words & set(PROGRAMS))
    if len(named) > 1:
        raise ValueError(f"choose one program, not {len(named)}: {', '.join(named)}")
    config = common.base("task")
    config.task = task()
    (_scratch if words & {"scratch", "smoke"} else _pretrained)(config)
    if "lora" in words:
        config.model.lora.update(rank=16, alpha=32.0)
        config.train.optimizer.learning_rate *= 10
    if "ppo" in words:
        _ppo(config)
    if "online_dpo" in words:
        config = _online_dpo(config)
    if "best_of_n" in words:
        config.program, config.best_of_n = "best_of_n", best_of_n.best_of_n()
    config.name = "_".join(["task", *named])
    return _smoke(config) if "smoke" in words else config


def _pretrained(config: ConfigDict) -> None:
    """A model that speaks already: no fine-tuning first, small steps, bfloat16 where there is an accelerator."""
    config.model = common.transformer(path="FOLDER", dtype="auto")
    config.rollout.update(completion_length=512, prompt_buckets=(128, 256, 512))
    config.rollout.engine.name = "continuous"
    config.sft.optimizer.learning_rate = 1e-5
    config.train.update(steps=200, minibatches=1, micro_batches=8)
    config.train.optimizer = common.optimizer(learning_rate=1e-6, warmup_steps=10)
    config.reward.update(num_workers=4, time_limit_s=5.0)
    config.eval.update(every=20, num_prompts=128, batch_size=64)
    config.checkpoint.every = 20


def _scratch(config: ConfigDict) -> None:
    config.model = common.transformer()
    config.rollout.update(completion_length=128, prompt_buckets=(64, 128, 256))
    config.sft.update(steps=500, batch_size=32)
    config.train.update(steps=200, micro_batches=4)
    config.train.optimizer = common.optimizer(learning_rate=3e-4, warmup_steps=10)
    config.eval.update(every=50, num_prompts=128, batch_size=64)


def _ppo(config: ConfigDict) -> None:
    """Four updates per step, a critic that starts from the policy, the KL in the reward."""
    config.sample.update(prompts_per_step=128, group_size=1)
    config.train.update(minibatches=4, micro_batches=max(config.train.micro_batches // 4, 1))
    config.algorithm.update(reward_kl=dict(fn="k1"), reward_kl_coef=0.01)
    rate = 10 * config.train.optimizer.learning_rate
    optimizer = common.optimizer(learning_rate=rate, warmup_steps=10)
    ppo_common.with_critic(config, warmup_steps=5, micro_batches=config.train.micro_batches, optimizer=optimizer)


def _online_dpo(config: ConfigDict) -> ConfigDict:
    optimizer, steps = config.train.optimizer, config.train.steps
    config = online.of(config)
    config.train.update(steps=steps, micro_batches=4, optimizer=optimizer)
    return config


def _smoke(config: ConfigDict) -> ConfigDict:
    config.task.path = "EXAMPLE"
    config.model.update(embed_dim=32, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=16, mlp_dim=64)
    config.rollout.update(completion_length=4, prompt_buckets=(16,))
    config.train.micro_batches = 1
    if config.program == "online_dpo":
        return online.smoke(config)
    if config.program == "best_of_n":
        config.best_of_n.update(num_prompts=8, samples=4, sizes=(1, 2, 4), batch_size=4)
    elif config.program == "ppo":
        config.critic.update(micro_batches=1, warmup_steps=1)
    config = common.smoke(config)
    if config.program == "ppo":
        config.sample.update(prompts_per_step=16, group_size=1)
    return config
