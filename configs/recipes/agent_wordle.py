"""An agent: Qwen3-1.7B learns Wordle in six turns, from prime-rl's SFT model, on TextArena's game.

    python -m experiments.agents --config=configs/recipes/agent_wordle.py --workdir=runs/agent_wordle

Needs pip install -e '.[hub]' textarena. 64 games x 16, a row of 4,096 tokens, 100 steps. Arguments: `smoke` (a laptop,
after `python -m experiments.tools.tiny_model qwen3`; our own Wordle with twelve words).
"""

from configs import agents, common
from configs.recipes import _start

RECIPE = dict(
    model="PrimeIntellect/Qwen3-1.7B-Wordle-SFT",
    data="TextArena's Wordle (PyPI textarena); no files",
    hardware="one host: TPU v5e-8; theirs: 2 GPUs",
    published="games won 0 % (Qwen3-1.7B) -> about 60 %",
    source="https://github.com/PrimeIntellect-ai/prime-rl/blob/main/examples/wordle/README.md",
    plan="`agent_wordle.json`: train 7.6, score 1.9, decode 8.4 of 16 GiB",
    departs="the game's own reward and form of a guess; theirs adds credit for parts, few guesses and the form",
)
OURS = "rl_jax.envs.text.wordle:Wordle"


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    config = _start.rl("agent_wordle", "hf://PrimeIntellect/Qwen3-1.7B-Wordle-SFT", mesh="fsdp:8")
    config.packing.mode, config.rollout.long_prompts = "padded", "stop"  # an environment writes the prompts
    agents.of(config, max_turns=6, max_turn_tokens=512)
    config.agent.env = dict(fn="rl_jax.envs.text.adapters.arena:TextArena", game="Wordle-v0-raw", players=1)
    config.task = dict(name="rl_jax.envs.text.adapters.problems:load", num_train=10_000, num_test=200)
    config.task.data_dir = common.DATA_DIR
    config.rollout.update(completion_length=3072, prompt_buckets=(1024,))
    config.algorithm.advantage = dict(fn="leave_one_out")
    config.algorithm.update(kl_coef=0.0, measure_kl=False, aggregate=dict(fn="token_mean"))
    config.sample.update(prompts_per_step=64, group_size=16)
    config.rollout.engine.slots = 128  # the cache of all 1,024 episodes at once is 56 GiB a chip
    config.train.update(steps=100, minibatches=1, micro_batches=32)
    config.train.optimizer = common.optimizer(learning_rate=1e-6)
    config.score.update(micro_batches=32)
    config.eval.update(every=20, num_prompts=128, batch_size=128)
    config.checkpoint.every = 20
    if "smoke" in words:
        _start.smoke(config, "qwen3")
        config.rollout.engine.slots = 0
        settings = dict(number=12)
        task = dict(name="rl_jax.envs.text.recorded:load", world=OURS, settings=settings, num_train=40, num_test=8)
        config.task = task | dict(expert_share=0.5, data_dir=common.DATA_DIR)
        config.agent.update(max_turns=3, max_turn_tokens=4)
        config.agent.env = dict(fn=OURS, **settings)
        config.rollout.update(completion_length=96, prompt_buckets=(96,))
    return config
