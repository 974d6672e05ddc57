"""Small networks that steer a black-box model, by DQN: RLoT's logic blocks, and RLAP's order of subtasks.

    python -m experiments.control.replay --config=configs/control/navigators.py:rlot
    python -m experiments.control.replay --config=configs/control/navigators.py:rlap

The model is a function (text) -> text, called on the host and never trained; --config.env.around=my_module:make names
your own. The shipped ones are scripted. Arguments: `rlot` (the default; arXiv 2505.14140, rl_jax.envs.thoughts): double
DQN with two heads, 1510 weights, on seven marks that the model gives its own step, paid the process reward and at the
end the answer; its code's numbers, but for a larger replay (4096 steps, not 500) and a smaller rate (.003, not .01,
with which returns swing). `rlap` (arXiv 2505.11893, rl_jax.envs.subtasks): one network reads (subtask, state) and
gives one number; no double target, draws by the size of the error and gamma .5 as in its code;
one update per four steps (its code: per episode), Adam instead of SGD. `smoke`: seconds, for CI.
"""

import math

from configs import common, sweeps
from configs.control import replay_common

SQUARED = dict(fn="scalar", delta=math.inf)


def get_config(arg: str | None = None):
    words = common.parse(arg, (*PAPERS, "smoke"))
    named = [word for word in PAPERS if word in words] or ["rlot"]
    if len(named) > 1:
        raise ValueError(f"{', '.join(named)}: one at a time")
    config = replay_common.base(named[0])
    config.sample.update(num_envs=4, num_steps=1)
    config.algorithm.head = SQUARED
    PAPERS[named[0]](config)
    config.eval.update(num_episodes=128, max_steps=8)
    config.log_every = config.checkpoint.every = 500
    if "smoke" in words:
        config.replay.update(capacity=256, warmup=64, batch_size=16)
        config.train.total_steps = 64
        config.log_every, config.checkpoint.every = 8, 8
        config.eval.num_episodes = 4
        config.log.update(progress=False, tensorboard=False)
    return config


def _rlot(config) -> None:
    config.env = dict(name="host/thoughts", features=(), frame_stack=1, at_reset="repeat")
    config.env.update(around="rl_jax.envs.clerk:clerk", most=5)
    config.network.update(hidden=(32, 32), dueling=True)
    config.replay.update(capacity=4_096, warmup=512, batch_size=64)
    config.algorithm.update(discount=0.9, target_every=50)
    config.algorithm.exploration.update(initial=1.0, final=0.0, fraction=0.6)
    config.train.update(total_steps=16_000, gradient_steps=4)
    config.train.optimizer.update(learning_rate=3e-3, final_fraction=0.05)


def _rlap(config) -> None:
    config.env = dict(name="host/subtasks", features=(), frame_stack=1, at_reset="repeat")
    config.env.update(around="rl_jax.envs.subtasks:events", size=256, most=8)
    config.network.update(hidden=(64, 32), enumerated=True)
    config.replay.update(capacity=5_120, warmup=512, batch_size=32)
    config.algorithm.method = dict(fn="dqn", double=False)
    config.algorithm.update(discount=0.5, target_every=20)
    config.algorithm.exploration.update(initial=0.9, final=0.05, fraction=1.0)
    config.algorithm.priority.update(exponent=1.0, correction=0.0)
    config.train.update(total_steps=32_000, gradient_steps=1)


PAPERS = {"rlot": _rlot, "rlap": _rlap}


def sweep_seed(arg: str | None = None):
    """Test seeds; environments on the host are trained one run at a time."""
    return sweeps.seeds(arg)
