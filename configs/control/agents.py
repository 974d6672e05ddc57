"""Several agents: PPO with their own or a centralised critic, and Q-learning with mixed values.

    python -m experiments.control.ppo --config=configs/control/agents.py:kitchen,mappo
    python -m experiments.control.ppo --config=configs/control/agents.py:zero_sum
    python -m experiments.control.replay --config=configs/control/agents.py:two_step,qmix

Arguments: a world, `kitchen` (two cooks and a counter, in Overcooked's shape; the default), `two_step` (QMIX's game),
`climbing` (a common table), `zero_sum` (a table whose value is 0.2), `recommender` (two levels, a goal for each session
and its topics, arXiv 2306.01476; 8.737 at best), `robots` (a task in hierarchical temporal logic, arXiv 2408.08188;
experiments.tools.language_rewards writes others from words). A method of control.ppo: `ippo` (arXiv 2011.09533;
the default), `mappo` (arXiv 2103.01955: the critic also sees the state); of control.replay: `vdn` (arXiv 1706.05296),
`qmix` (arXiv 1803.11485), `iql` (each agent its own Q-learning). `smoke` (seconds, for CI).

sample.num_envs counts worlds; all agents share one network that reads who they are. From MAPPO's code: clip 0.2, GAE
0.95, entropy 0.01, one minibatch. Not from it: 4 epochs of its 5 to 15, no normalised values, larger steps for small
worlds. From PyMARL: double Q, epsilon-greedy per agent, mixers of 32 and 64. Not from it: networks without memory, Adam
for RMSprop, draws of steps and not of episodes. In `two_step` all actions are random while it learns, as in the paper.
"""

import math

from configs import common, sweeps
from configs.control import control_common, replay_common

# own: features of an agent with its one-hot, which the actor of a centralised critic reads.
_KITCHEN = dict(name="agents/kitchen", lane=2, onions=1, cook=2, limit=20)
WORLDS = {
    "kitchen": dict(env=_KITCHEN, own=20, max_steps=20),
    "two_step": dict(env=dict(name="agents/two_step"), own=5, max_steps=2),
    "recommender": dict(env=dict(name="agents/recommender"), own=20, max_steps=15),
    # arXiv 2408.08188: both ends in any order, and the middle after the left one. The shortest plan of two robots has 6
    # steps, of one 9: robot 0 goes left and back, robot 1 right.
    "robots": dict(
        env=dict(
            name="agents/robots",
            task="left & right",
            parts=dict(left="F (a & F b)", right="F c"),
            owners=dict(left=0, right=1),
            places=dict(a=0, b=3, c=6),
            starts=(3, 3),
            length=7,
            progress=0.1,
        ),
        own=15,
        max_steps=28,
    ),
    "climbing": dict(env=dict(name="agents/stage"), own=3, max_steps=1),
    "zero_sum": dict(
        env=dict(name="agents/stage", payoffs=((2.0, -1.0), (-1.0, 1.0)), common=False), own=3, max_steps=1
    ),
}
POLICIES, VALUES = ("ippo", "mappo"), ("iql", "vdn", "qmix")


def get_config(arg: str | None = None):
    words = common.parse(arg, (*WORLDS, *POLICIES, *VALUES, "smoke"))
    worlds, methods = sorted(words & set(WORLDS)), sorted(words & {*POLICIES, *VALUES})
    if max(len(worlds), len(methods)) > 1:
        raise ValueError(f"choose at most one world and one method, not {', '.join(worlds + methods)}")
    world, method = (worlds or ["kitchen"])[0], (methods or ["ippo"])[0]
    if world == "zero_sum" and method in ("vdn", "qmix"):
        raise ValueError(f"{method} is for agents that share a reward: choose ippo, mappo or iql for zero_sum")
    name = f"control_agents_{world}_{method}"
    make = _policies if method in POLICIES else _values
    config = make(name, world, method)
    with config.unlocked():
        config.env = dict(features=(), frame_stack=1, at_reset="repeat") | WORLDS[world]["env"]
        config.env.agents = _view(method)
        if world == "kitchen":  # trained with Overcooked's shaped rewards, judged by soups
            config.env.update(shaping=1.0, judged=dict(shaping=0.0))
    config.update(num_seeds=3)
    config.eval.update(num_episodes=64, max_steps=WORLDS[world]["max_steps"], greedy=world != "zero_sum")
    if "smoke" in words:
        _shrink(config)
    return config


def _view(method: str) -> dict:
    """How the updater sees the agents (rl_jax.envs.agents)."""
    if method in ("vdn", "qmix"):
        return dict(fn="as_one")
    return dict(fn="as_rows", central=method == "mappo")


def _policies(name: str, world: str, method: str):
    """PPO with agents as rows."""
    config = control_common.base(name)
    config.network.actor_features = WORLDS[world]["own"] if method == "mappo" else 0
    config.train.update(epochs=4, minibatches=1)
    if world == "kitchen":
        config.sample.update(num_envs=32, num_steps=40)
        config.train.update(total_steps=400_000, minibatches=4)
        config.train.optimizer.learning_rate = 1e-3
        config.update(log_every=20)
        config.checkpoint.every = 100
        return config
    config.sample.update(num_envs=64, num_steps=WORLDS[world]["max_steps"])
    config.network.hidden = (16,)
    config.train.update(total_steps=500 * 64 * WORLDS[world]["max_steps"])
    config.train.optimizer.learning_rate = 5e-3
    if world == "zero_sum":
        # Plain gradients circle around the equilibrium. The bonus pulls them in, with small steps and no momentum.
        config.algorithm.update(entropy_coef=0.2, whiten=False)
        config.sample.num_envs = 256
        config.train.update(total_steps=500 * 256, epochs=1)
        config.train.optimizer.update(learning_rate=1e-3, b1=0.0)
    config.update(log_every=50)
    config.checkpoint.every = 250
    return config


def _values(name: str, world: str, method: str):
    """Q-learning of a team, or of agents as rows."""
    config = replay_common.base(name)
    with config.unlocked():
        if method != "iql":
            config.algorithm.method = dict(fn="value_decomposition", double=True)
            config.algorithm.mixer = dict(fn="vdn") if method == "vdn" else dict(fn="qmix", width=32, hidden=64)
    config.algorithm.head.delta = math.inf
    config.sample.update(num_envs=16, num_steps=2)
    config.replay.update(capacity=16_384, warmup=512, batch_size=64)
    config.train.update(gradient_steps=4)
    config.algorithm.update(target_every=100)
    config.network.hidden = (64, 64)
    if world == "kitchen":
        config.train.update(total_steps=200_000)
        config.algorithm.exploration.update(initial=1.0, final=0.05, fraction=0.5)
        config.update(log_every=625)
        config.checkpoint.every = 6250
        return config
    config.network.hidden = (32,)
    config.algorithm.exploration.update(initial=1.0, final=1.0, fraction=1.0)
    config.train.update(total_steps=32 * 500)
    config.train.optimizer.learning_rate = 3e-3
    config.update(log_every=100)
    config.checkpoint.every = 500
    return config


def _shrink(config) -> None:
    config.update(num_seeds=2, log_every=2)
    config.network.hidden = (8,)
    config.sample.update(num_envs=4, num_steps=4)
    config.train.total_steps = 4 * 16
    config.eval.update(num_episodes=2)
    config.checkpoint.every = 2
    if config.program == "control.replay":
        config.replay.update(capacity=64, warmup=16, batch_size=8)
    config.log.update(progress=False, tensorboard=False)


def sweep_seed(arg: str | None = None):
    """Test seeds; each is a run of its own, regardless of config.num_seeds."""
    return sweeps.product(sweeps.seeds(arg), sweeps.grid("num_seeds", (1,)))
