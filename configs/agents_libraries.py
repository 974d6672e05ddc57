"""Environments of text of other libraries (rl_jax.envs.text.adapters), each an extra: pip install -e '.[reasoning]'.

    python -m experiments.agents --config=configs/agents_libraries.py:reasoning --config.model.path=FOLDER

Arguments: `reasoning` (reasoning-gym: all its tasks, a score below 1 pays nothing), `arena` (a game of TextArena),
`verifiers` (a taskset: --config.agent.env.taskset=my_tasks:make; of its prompts --config.agent.env.test_share are held
out for the evaluation), `openenv` (a server: --config.agent.env.url=URL),
`mcp` (tools of a server: --config.agent.env.command="('python','server.py')", for a task with prompts of its own);
`smoke`: seconds. Without a model folder the model is a small one of characters, from scratch.
"""

from configs import agents, common, sweeps

ADAPTERS = "rl_jax.envs.text.adapters"
# word -> (class, keywords, most turns, tokens of a prompt, tokens of an episode after it)
LIBRARIES = {
    "reasoning": ("reasoning:ReasoningGym", dict(tasks=(), threshold=1.0), 1, 2048, 512),
    "arena": ("arena:TextArena", dict(game="GuessTheNumber-v0-raw", players=1), 10, 768, 1024),
    "verifiers": ("verifiers:Verifiers", dict(taskset="MODULE:FUNCTION", test_share=0.1), 1, 1024, 512),
    "openenv": ("openenv:OpenEnv", dict(url="http://localhost:8000", observation=""), 8, 512, 1024),
    "mcp": ("mcp:McpUser", dict(command=(), url="", price=0.0), 4, 512, 1024),
}


def get_config(arg: str | None = None):
    words = common.parse(arg, (*LIBRARIES, "smoke"))
    name = common.one_of(words, LIBRARIES, "reasoning")
    path, settings, turns, prompt, row = LIBRARIES[name]
    config = agents.base(name)
    config.task = dict(name=f"{ADAPTERS}.problems:load", num_train=10_000, num_test=200, data_dir=common.DATA_DIR)
    config.agent.update(max_turns=turns)
    config.agent.env = dict(fn=f"{ADAPTERS}.{path}", **settings)
    config.algorithm.advantage = dict(fn="leave_one_out")
    config.rollout.update(completion_length=row, prompt_buckets=(prompt,))
    config.model = common.transformer(
        embed_dim=64, num_layers=3, num_heads=4, num_kv_heads=4, head_dim=16, mlp_dim=256, tied_head=False
    )
    config.sft.steps = 0  # nothing is recorded
    config.train.update(steps=100)
    config.train.optimizer = common.optimizer(learning_rate=1e-4, warmup_steps=10)
    config.sample.update(prompts_per_step=8, group_size=8)
    config.eval.update(every=25, num_prompts=64, batch_size=64)
    config.checkpoint.every = 50
    return common.smoke(config) if "smoke" in words else config


def sweep_seed(arg: str | None = None):
    """Test seeds."""
    return sweeps.seeds(arg)
