"""Goals in words as a part of the observation (RLAdapter, arXiv 2309.17176); PPO, on the environment's own rewards.

    python -m experiments.control.ppo --config=configs/control/guides.py:camp
    python -m experiments.control.ppo --config=configs/control/guides.py:camp,unadapted
    python -m experiments.control.ppo --config=configs/control/guides.py:crafter       # needs the extra craftax

Arguments: `camp` (the default), a probe whose needs are hidden from the policy (four deeds; 16 is the best return, 4
that of chance), or `crafter`, Craftax-Classic with goals every 100 steps. `unadapted` leaves the adapter's analysis out
of what the large model reads. Both models are scripted (rl_jax.envs.speakers);
--config.env.guide="{'fn': 'my_module:make', 'interval': 100, 'record': ''}" names yours, a function that returns
rl_jax.envs.guidance.Speakers. episode/understood is the score of how well deeds follow goals. env.guide.record names a
file for what the adapter read and said in training, one JSON record each: the data of the paper's fine-tuning, which
experiments.sft does on a model of yours (--config=configs/task.py:lora --config.task.path=FILE). `smoke` (seconds).
"""

from configs import common
from configs.control import control_common, environments

WORLDS = ("camp", "crafter")


def get_config(arg: str | None = None):
    words = common.parse(arg, (*WORLDS, "unadapted", "smoke"))
    if set(WORLDS) <= words:
        raise ValueError("choose camp or crafter, not both")
    world = "crafter" if "crafter" in words else "camp"
    config = control_common.base("_".join(["guided", world, *(["unadapted"] if "unadapted" in words else [])]))
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
    config.env.guide = guide | dict(interval=4 if world == "camp" else 100, record="")
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
