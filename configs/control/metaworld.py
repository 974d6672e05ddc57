"""Meta-World (arXiv 1910.10897): one task of a robot arm, or ten or fifty at once with their ids in the observation.

    python -m experiments.control.replay --config=configs/control/metaworld.py:reach
    python -m experiments.control.replay --config=configs/control/metaworld.py:mt10
    python -m experiments.control.ppo --config=configs/control/metaworld.py:mt10,ppo
    python -m experiments.control.replay --config=configs/control/metaworld.py:reach --config.env.name=metaworld/push-v3

Needs the extra `metaworld`. Arguments: `reach` (the default; any other task by env.name), `mt10`, `mt50`. A method:
`sac` (the default of one task), `mt_sac` (of several: a temperature for each task), or `ppo`, `trpo`, which
experiments.control.ppo trains. eval/success is the benchmark's measure, the share of episodes with a success at any
step; eval/success/TASK is that of one task. Networks, batches and rates of sac and mt_sac are those of garage's
examples, but for `reach`, which is sized for a laptop. The paper trains MT10 for 20 million steps, here some 800 per
second and core. `smoke` (seconds, for CI).
"""

from configs import common, sweeps
from configs.control import control_common, replay_common
from configs.control.environments import METHODS as LEARNERS  # the module's sweeps are of PPO's fields

TASKS = {
    "reach": dict(name="metaworld/reach-v3", count=1, steps=60_000),
    "mt10": dict(name="metaworld/MT10", count=10, steps=20_000_000),
    "mt50": dict(name="metaworld/MT50", count=50, steps=100_000_000),
}
METHODS = ("sac", "mt_sac", "ppo", "trpo")


def get_config(arg: str | None = None):
    words = common.parse(arg, (*TASKS, *METHODS, "smoke"))
    places, methods = sorted(words & set(TASKS)), sorted(words & set(METHODS))
    if max(len(places), len(methods)) > 1:
        raise ValueError(f"choose at most one set of tasks and one method, not {', '.join(places + methods)}")
    place = places[0] if places else "mt10" if "mt_sac" in methods else "reach"
    task = TASKS[place]
    method = methods[0] if methods else "sac" if task["count"] == 1 else "mt_sac"
    if method == "mt_sac" and task["count"] == 1:
        raise ValueError("mt_sac has a temperature for each of several tasks: use sac, or mt10")
    name = f"metaworld_{place}_{method}"
    config = _by_gradients(name, task, method) if method in ("ppo", "trpo") else _by_replay(name, task, method)
    config.env = dict(name=task["name"], features=(), frame_stack=1, at_reset="repeat", num_goals=50, max_steps=500)
    config.train.total_steps = task["steps"]
    config.eval.update(
        num_episodes=max(10, 2 * task["count"] if task["count"] < 50 else 50), max_steps=500, greedy=True
    )
    if "smoke" in words:
        config.env.update(num_goals=1, max_steps=5)
        config.network.hidden = (8,)
        config.train.total_steps = 4 * config.sample.num_envs * config.sample.num_steps
        config.eval.update(num_episodes=task["count"], max_steps=5)
        config.log_every = config.checkpoint.every = 2
        config.log.update(progress=False, tensorboard=False)
        if method in ("sac", "mt_sac"):
            config.replay.update(
                capacity=100 * config.sample.num_envs, warmup=10 * config.sample.num_envs, batch_size=8
            )
    return config


def _by_replay(name: str, task: dict, method: str):
    config, several = replay_common.base(name), task["count"] > 1
    config.sample.update(num_envs=task["count"] if several else 2, num_steps=1 if several else 5)
    config.replay.update(capacity=1_000_000, warmup=500 * config.sample.num_envs, batch_size=1280 if several else 128)
    config.network.update(hidden=(400, 400) if several else (128, 128), members=2)
    fn = "task_sac" if method == "mt_sac" else "sac"
    config.algorithm.method, config.algorithm.head = dict(fn=fn, temperature=1.0), dict(fn="scalar", delta=float("inf"))
    config.algorithm.update(tau=0.005, target_every=1)
    config.algorithm.exploration.update(initial=0.0, final=0.0, fraction=1.0)
    config.train.update(gradient_steps=1 if several else 5, max_grad_norm=float("inf"))
    rate = 3e-4 if several else 1e-3
    config.train.optimizer.update(learning_rate=rate)
    config.train.actor_optimizer.update(learning_rate=rate)
    config.log_every = 5_000 if several else 1_000
    config.checkpoint.every = config.log_every
    return config


def _by_gradients(name: str, task: dict, method: str):
    config = control_common.base(name)
    config.sample.update(num_envs=max(10, task["count"]), num_steps=500)
    config.network.update(hidden=(128, 128))
    config.algorithm.update(normalize_observations=True, normalize_rewards=True, entropy_coef=0.005)
    config.algorithm.advantage.update(discount=0.99, lam=0.97)
    config.train.update(epochs=10, minibatches=20)
    config.train.optimizer.update(learning_rate=5e-4)
    if method == "trpo":
        for group, function in LEARNERS["trpo"].items():
            config.algorithm[group] = function
    config.log_every = config.checkpoint.every = 10
    return config


def sweep_seed(arg: str | None = None):
    """Test seeds; environments on the host are trained one run at a time."""
    return sweeps.seeds(arg)
