"""Tulu 3's RLVR on Llama 3.1 8B (arXiv 2411.15124): PPO on 10 for a right answer, from the DPO model. GSM8K's part.

    python -m experiments.tools.fetch_data math
    python -m experiments.ppo --config=configs/recipes/tulu3_rlvr.py --workdir=runs/tulu3_rlvr --distributed=auto

    R = 10 [right], -10 if cut off;   r_t = -.05 k1_t, and + R at the end;   GAE, discount 1, lambda .95

224 prompts a step (32 on each of 7 GPUs), 4 epochs, 3e-7 falling to 0 over 10,000,000 episodes: the command of
open-instruct's docs/tulu3.md for Llama-3.1-Tulu-3-8B and its program's defaults. Which step was published is not said
there. Arguments: `smoke` (a laptop, after `python -m experiments.tools.tiny_model llama`).
"""

from configs import common, ppo_common
from configs.recipes import _start

RECIPE = dict(
    model="Llama-3.1-Tulu-3-8B-DPO",
    data="GSM8K (`fetch_data math`)",
    hardware="TPU v5e-64 (16 hosts); theirs: 8 H100",
    published="average of 12 evaluations 64.4 (DPO) -> 64.8; GSM8K 84.3 -> 87.6; MATH 42.0 -> 43.7",
    source="https://huggingface.co/allenai/Llama-3.1-Tulu-3-8B (numbers); open-instruct docs/tulu3.md (command)",
    plan="`tulu3_rlvr.json`: train 3.6, score 0.8, decode 2.6, critic 3.5 of 16 GiB",
    departs="GSM8K alone, without MATH and the IFEval prompts, no examples in the prompt; the critic starts from the "
    "policy, not from the reward model, learns with 1e-6 and alone for 5 steps; prompts of at most 1,024 tokens (there "
    "2,048), answers of the newest policy (there of the one before)",
)


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    config = _start.rl(
        "tulu3_rlvr", "hf://allenai/Llama-3.1-Tulu-3-8B-DPO", mesh="fsdp:32,tensor:2", several_hosts=True
    )
    config.task = _start.math_words("gsm8k")
    config.rollout.update(completion_length=2048, prompt_buckets=(1024,))
    config.reward.terms = dict(verified=dict(fn="task", weight=10.0))
    config.algorithm.shaping = dict(fn="replace_truncated", reward=-10.0)
    config.algorithm.update(kl_coef=0.0, reward_kl=dict(fn="k1"), reward_kl_coef=0.05)
    config.sample.update(prompts_per_step=224, group_size=1)
    config.train.update(steps=44642, epochs=4, minibatches=1, micro_batches=7)
    config.train.optimizer = common.optimizer(
        learning_rate=3e-7, decay="linear", decay_steps=4 * 44642, final_fraction=0.0
    )
    config.score.update(micro_batches=7)
    optimizer = common.optimizer(learning_rate=1e-6)
    ppo_common.with_critic(config, warmup_steps=5, micro_batches=7, optimizer=optimizer)
    config.eval.update(every=100, num_prompts=1319, batch_size=224, top_k=1)
    config.checkpoint.every = 100
    if "smoke" in words:
        _start.smoke(config, "llama")
        config.train.epochs = 1
        config.critic.update(warmup_steps=1, micro_batches=1)
    return config
