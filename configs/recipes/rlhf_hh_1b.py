"""RLHF on HH (arXiv 2204.05862) with Llama 3.2 1B: SFT on the chosen answers, a reward model, PPO on it.

    python -m experiments.reward_model --config=configs/recipes/rlhf_hh_1b.py:reward_model --workdir=runs/hh_judge
    python -m experiments.ppo --config=configs/recipes/rlhf_hh_1b.py --workdir=runs/hh_ppo

Needs pip install -e '.[hub]'. The policy is fine-tuned in WORKDIR/sft first; the critic starts from the reward model;
the KL to the fine-tuned policy is in the reward. The answers are offensive in part, by design of the data. Arguments:
`reward_model`, `ppo` (the default), `smoke` (a laptop, after `python -m experiments.tools.tiny_model llama`).
"""

from configs import common, ppo_common
from configs.preferences import reward_models
from configs.recipes import _start

RECIPE = dict(
    model="Llama-3.2-1B (policy, critic, reward model)",
    data="`hf://datasets/Dahoas/full-hh-rlhf`, 112k pairs",
    hardware="one host: TPU v5e-8",
    published="none found: no paper or framework states a number for PPO with 1B on HH under a fixed judge",
    source="arXiv 2204.05862 (method, 52B at most); 1909.08593",
    plan="`rlhf_hh_1b.json`: train 3.8, score 5.0, decode 2.2, critic 3.5 of 16 GiB",
    departs="",
)
MODEL = "hf://meta-llama/Llama-3.2-1B"
DATA = "hf://datasets/Dahoas/full-hh-rlhf@main/data/train-*.parquet"


def get_config(arg: str | None = None):
    words = common.parse(arg, ("reward_model", "ppo", "smoke"))
    if {"reward_model", "ppo"} <= words:
        raise ValueError("choose one stage, reward_model or ppo")
    smoke, judge = "smoke" in words, "runs/smoke_hh_judge" if "smoke" in words else "runs/hh_judge"
    return _reward_model(smoke) if "reward_model" in words else _policy(smoke, judge)


def _reward_model(smoke: bool):
    config = _start.preferences("hh_reward_model", MODEL, _start.pairs(DATA), mesh="fsdp:8", chat=False)
    fields = reward_models.base("x")
    config.program, config.algorithm, config.benchmarks = "reward_model", fields.algorithm, fields.benchmarks
    config.encode, config.train = fields.encode, fields.train
    config.encode.update(truncate="drop", identical="drop")
    config.rollout.update(completion_length=256, prompt_buckets=(512,))
    config.train.update(steps=1700, batch_size=64, micro_batches=2)
    config.train.optimizer = common.optimizer(learning_rate=1e-5, warmup_steps=50, decay_steps=1650, final_fraction=0.1)
    config.eval.update(every=200, num_prompts=1024, batch_size=64)
    config.checkpoint.every = 200
    if not smoke:
        return config
    _start.smoke(config, "llama")
    del config.train["data_epochs"]
    return config


def _policy(smoke: bool, judge: str):
    config = _start.rl("hh_ppo", MODEL, mesh="fsdp:8", chat=False)
    config.task = dict(name="records", path=DATA, completion="chosen", test_share=0.01, data_dir=common.DATA_DIR)
    config.rollout.update(completion_length=256, prompt_buckets=(512,))
    config.judge = dict(proxy=dict(fn="reward_model", path=judge))
    config.sft.update(steps=1700, batch_size=64, micro_batches=2, eval_every=1700)
    config.algorithm.update(kl_coef=0.0, reward_kl=dict(fn="k1"), reward_kl_coef=0.05, aggregate=dict(fn="token_mean"))
    config.sample.update(prompts_per_step=256, group_size=1)
    config.train.update(steps=400, epochs=2, minibatches=2, micro_batches=4)
    config.train.optimizer = common.optimizer(learning_rate=1e-6, warmup_steps=20)
    optimizer = common.optimizer(learning_rate=5e-6, warmup_steps=20)
    ppo_common.with_critic(config, init_from=judge, warmup_steps=10, micro_batches=4, optimizer=optimizer)
    config.eval.update(every=50, num_prompts=256, batch_size=128)
    config.checkpoint.every = 50
    if smoke:
        _start.smoke(config, "llama")
        config.sft.update(steps=2, batch_size=4, micro_batches=1, eval_every=2)
        config.critic.update(warmup_steps=1, micro_batches=1)
    return config
