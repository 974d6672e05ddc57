"""Agents: episodes of several turns, with GRPO's advantages or with credit per turn.

    make agent                                                                  # or, the same:
    python -m experiments.agents --config=configs/agents.py:calculator --workdir=runs/agent

"12*34=" -> "c12*34" -> "?408=" -> "408": a product too large for the head of a tiny model, and a calculator, each call
at a small price. The recorded episodes of the warm start call it in three of ten cases, half of them
malformed; rewards teach the rest. Arguments: `calculator` (the default), `broken` (it returns random numbers: calls die
out), `unmasked` (the environment's tokens are trained on, as a mistake), `arithmetic` (one turn: what experiments.grpo
does), `own` (an environment of yours that makes its own problems, --config.agent.env.fn=my_worlds:Guess: a small model
of ASCII characters from scratch, without a warm start, or --config.model.path=FOLDER), `smoke` (seconds, for CI).
"""

from configs import common, sweeps
from configs.tasks import arithmetic


def agent(**changes) -> dict:
    """config.agent: the environment and the limits of its episodes. 0: no limit but that of the row."""
    fields = dict(
        env=dict(fn="one_answer"),  # of rl_jax.envs.text, or "module:Class"
        max_turns=8,
        max_turn_tokens=0,
        max_tokens=0,
        max_context=0,
        max_observation=0,
        max_seconds=0.0,  # of the clock; tools have CPU seconds of their own
        overflow="end",
        on_rewrite="keep",
        train_observations=False,
        branching=dict(fn=""),  # of rl_jax.experience.branching: at_random, by_entropy
        roots=2,
        rounds=1,
        state_rollouts=0,
        own_judgement=False,
        record=False,
        step_model=dict(fn=""),  # implicit: a reward model of turns that is trained beside the policy
        turn_rewards=dict(fn=""),  # process: of a process reward model of turns, which was trained before
        replay=dict(fn=""),  # successes: of recorded episodes, for groups that failed
        curriculum=dict(fn=""),  # policy, chat, rule: who makes new tasks of failed ones
        partner="",  # "self": the policy as it is now; "reference": an older one (algorithm.reference_schedule)
    )
    return fields | changes


def base(name: str):
    """A whole run of experiments.agents: common.base with an environment and the engine that resumes rows."""
    return of(common.base(name))


def of(config, **changes):
    """The config of a single-turn run as one of experiments.agents. changes: of config.agent."""
    config.program = "agents"
    config.agent = agent(**changes)
    config.rollout.engine.name = "continuous"
    return config


def get_config(arg: str | None = None):
    words = common.parse(arg, ("calculator", "broken", "unmasked", "arithmetic", "own", "smoke"))
    if "arithmetic" in words:
        return of(arithmetic.get_config("smoke" if "smoke" in words else None))
    if "own" in words:
        return _own("smoke" in words)
    config = base("agent")
    config.task = dict(name="calculator", digits=2, num_train=4_000, num_test=500, data_dir=common.DATA_DIR)
    config.agent.update(max_turns=3, max_turn_tokens=8)
    config.agent.env = dict(fn="calculator", price=0.05, broken="broken" in words)
    config.agent.train_observations = "unmasked" in words
    config.model = common.transformer(
        embed_dim=48, num_layers=2, num_heads=4, num_kv_heads=4, head_dim=12, mlp_dim=128, tied_head=False
    )
    config.rollout.update(completion_length=24, prompt_buckets=(7,))
    config.sft.update(steps=1_000, batch_size=64, eval_every=1_000)
    config.sft.optimizer = common.optimizer(learning_rate=4e-3, warmup_steps=20, decay_steps=980, final_fraction=0.05)
    config.train.update(steps=60)
    config.algorithm.advantage = dict(fn="leave_one_out")  # a std of mostly failed groups would punish calls
    config.sample.update(prompts_per_step=16, group_size=8)
    config.train.optimizer = common.optimizer(learning_rate=1e-3, warmup_steps=5)
    config.eval.update(every=20, num_prompts=128, batch_size=128)
    config.checkpoint.every = 20
    if "smoke" in words:
        common.smoke(config)
        config.task.update(num_train=200, num_test=20)
    return config


def _own(smoke: bool):
    """An environment that reads no prompts of a file: records are numbers, and a reset makes of them what it likes."""
    config = base("own_agent")
    config.task = dict(
        name="rl_jax.envs.text.adapters.problems:load", num_train=10_000, num_test=200, data_dir=common.DATA_DIR
    )
    config.agent.update(max_turn_tokens=16)
    config.agent.env = dict(fn="MODULE:CLASS")
    config.model = common.transformer(
        embed_dim=64, num_layers=3, num_heads=4, num_kv_heads=4, head_dim=16, mlp_dim=256, tied_head=False
    )
    config.rollout.update(completion_length=256, prompt_buckets=(64, 256))
    config.sft.steps = 0  # nothing is recorded
    config.train.update(steps=100)
    config.algorithm.advantage = dict(fn="leave_one_out")
    config.sample.update(prompts_per_step=16, group_size=8)
    config.train.optimizer = common.optimizer(learning_rate=3e-4, warmup_steps=10)
    config.eval.update(every=20, num_prompts=64, batch_size=64)
    config.checkpoint.every = 20
    return common.smoke(config) if smoke else config


def sweep_seed(arg: str | None = None):
    """Test seeds."""
    return sweeps.seeds(arg)
