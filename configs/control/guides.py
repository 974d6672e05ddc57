"""Goals in words as a part of the observation (RLAdapter, arXiv 2309.17176); PPO, on the environment's own rewards.

    python -m experiments.control.ppo --config=configs/control/guides.py:camp
    python -m experiments.control.ppo --config=configs/control/guides.py:camp,unadapted
    python -m experiments.control.ppo --config=configs/control/guides.py:crafter       # needs the extra craftax
    python -m experiments.control.ppo --config=configs/control/guides.py:camp,served \\
        --config.env.guide.adapter.url=http://127.0.0.1:8000 --config.env.guide.decide.url=http://127.0.0.1:8001

Arguments: `camp` (the default), a probe whose needs are hidden from the policy (four deeds; 16 is the best return, 4
that of chance), or `crafter`, Craftax-Classic with goals every 100 steps. `unadapted` leaves the adapter's analysis out
of what the large model reads. Both models are scripted (rl_jax.envs.speakers), or with `served` language models that
answer over OpenAI's protocol (experiments.parts.guides; docs/pages/language_models.md);
--config.env.guide="{'fn': 'my_module:make', 'interval': 100, 'record': ''}" names yours, a function that returns
rl_jax.envs.guidance.Speakers. episode/understood is the score of how well deeds follow goals. env.guide.record names a
file for what the adapter read and said in training, one JSON record each: the data of the paper's fine-tuning, which
experiments.sft does on a model of yours (--config=configs/task.py:lora --config.task.path=FILE);
experiments.tools.adapter_stages does both in turns, with `staged`. `smoke` (seconds).
"""

from configs import common
from configs.control import control_common, environments

WORLDS = ("camp", "crafter")
# What a chat with each model begins with.
ANALYST = "You watch a player of a game and say in one short sentence what it needs and how well it follows advice."
ADVISER = "You advise a player of a game. Name up to three of the available sub-goals, and nothing else."


def get_config(arg: str | None = None):
    words = common.parse(arg, (*WORLDS, "unadapted", "served", "staged", "smoke"))
    if set(WORLDS) <= words:
        raise ValueError("choose camp or crafter, not both")
    if len(words & {"unadapted", "served", "staged"}) > 1 or {"crafter", "staged"} <= words:
        raise ValueError("choose one of unadapted, served and staged; staged is for the camp")
    world = "crafter" if "crafter" in words else "camp"
    config = control_common.base("_".join(["guided", world, *sorted(words & {"served", "staged", "unadapted"})]))
    if world == "camp":
        config.env.update(name="probes/camp", features=(5, *range(6, 17)))  # the time, and the words of goals
        config.update(num_seeds=3, log_every=10)
        config.sample.update(num_envs=16, num_steps=32)
        config.network.hidden = (32,)
        config.train.update(total_steps=60_000)
        config.train.optimizer.learning_rate = 3e-3
        config.eval.update(num_episodes=128, max_steps=16, greedy=True)
    else:
        config.update(environments.ENVIRONMENTS["craftax_classic"])
    guide = dict(fn=world, adapter="translated" if world == "camp" else "by_score")
    guide |= _served(world) if "served" in words else {}
    config.env.guide = guide | dict(interval=4 if world == "camp" else 100, record="")
    if "staged" in words:
        config.env.guide = _staged()
        config.train.optimizer.final_fraction = 1.0  # the run goes on for another stage
        config.update(num_seeds=1)
        config.eval.num_episodes = 16
    if "unadapted" in words:
        config.env.guide.adapter = None
    if "smoke" in words:
        config.update(num_seeds=1, log_every=2)
        config.sample.update(num_envs=2, num_steps=16)
        config.network.hidden = (8,)
        config.train.update(total_steps=4 * 32, minibatches=2)
        config.eval.update(num_episodes=2, max_steps=16)
        config.checkpoint.every = 2
        config.log.update(progress=False, tensorboard=False)
    return config


def _served(world: str) -> dict:
    """Fields of config.env.guide for two servers."""
    asked = dict(fn="by_server", model="", timeout_s=60.0, kept="")
    return dict(
        fn="experiments.parts.guides:served",
        world=world,
        adapter=asked | dict(url="http://127.0.0.1:8000", system=ANALYST, max_tokens=100),
        decide=asked | dict(url="http://127.0.0.1:8001", system=ADVISER, max_tokens=64),
    )


def _staged() -> dict:
    """config.env.guide for experiments.tools.adapter_stages: a server for the adapter, a script that decides."""
    adapter = dict(fn="by_server", url="http://127.0.0.1:8123", max_tokens=48, timeout_s=600.0, remember=False)
    return dict(
        fn="experiments.parts.guides:served", world="camp", adapter=adapter, decide="scripted", interval=4, record=""
    )
