"""A finished run of control.ppo as the teacher whose states are starts: env.snapshots.run names its folder.

Source: arXiv 2403.00673 and sdpkjc/snapshotrl: a trained PPO agent samples its actions, and its states are clustered by
its critic's value of them. Of several runs in one program the teacher is the one that ended with the highest return.
"""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.parts import control_runs, control_setup, stored
from experiments.parts.control_auxiliary import with_auxiliary
from rl_jax import control, envs
from rl_jax.runs.run_record import read_json
from rl_jax.training import checkpoint


class Teacher(NamedTuple):
    """A policy and what it thinks of a state.

    Attributes:
      act: (key, observation [*shape]) -> an action, as the environment takes it.
      value: observations [M, *shape] -> float32 [M].
    """

    act: Callable
    value: Callable


def read(folder: pathlib.Path) -> tuple[Any, int]:
    """(the config of a finished run of control.ppo, the index of the best of its runs).

    Raises:
      ValueError: if the folder has no such run, its policy is no mlp or has several objectives or agents, or it reads
        other observations than the environment's own.
    """
    said = f"env.snapshots.run={str(folder)!r}"
    if not (folder / "config.json").is_file() or not (folder / "final.json").is_file():
        raise ValueError(f"{said} is no finished run: train a teacher with python -m experiments.control.ppo")
    config = stored.read_config(folder)
    if config.program != "control.ppo" or config.network.kind != "mlp" or config.spread != "jit":
        raise ValueError(
            f"{said} is of {config.program}, network.kind={config.network.kind!r} and spread={config.spread!r}: the "
            "teacher must be of control.ppo, 'mlp' and 'jit'"
        )
    wrapped = config.env.frame_stack > 1 or config.env.features or config.env.get("agents")
    if wrapped or control_setup.load_env(config, 1).objectives:
        raise ValueError(f"{said}: the teacher must read single observations as they are, and have one objective")
    metrics = read_json(folder / "final.json")["metrics"]
    returns = metrics["eval/return" if "eval/return" in metrics else "episode/return"]
    return config, int(np.argmax(returns))


def restored(path: str, env: envs.Environment) -> Teacher:
    """The Teacher of a run's newest checkpoint.

    Args:
      path: of the run's folder.
      env: that it is to act in.

    Raises:
      ValueError: as `read`; if the run's environment has other observations or actions than `env`.
      FileNotFoundError: if the run has no checkpoint.
    """
    folder = pathlib.Path(path).expanduser()
    config, best = read(folder)
    if "snapshots" in config.env:
        config.env.snapshots.run = ""  # a student as the teacher: its own teacher's folder may be gone
    own = control_setup.load_env(config, 1)
    theirs, ours = (f"observations {x.observation_space.shape} and {x.action_space}" for x in (own, env))
    if theirs != ours:
        raise ValueError(f"env.snapshots.run={path!r} is of {config.env.name}, {theirs}: here are {ours}")
    algorithm = control_setup.make_algorithm(control_setup.settings_of(config))
    agent = control_setup.make_network(config, own, algorithm.objective.num_outputs())
    agent = with_auxiliary(config, config.algorithm.auxiliary.to_dict(), agent, own).agent
    init = control_runs.map_runs(control_runs.make_run(config)[0], 1)
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here),
        jax.eval_shape(init, *control_setup.runs_of(config)),
    )
    with checkpoint.Checkpointer(folder / "checkpoints", every=1) as checkpoints:
        state = checkpoints.restore({"state": like})[0]["state"]
    train = jax.tree.map(lambda x: x[best], state.train)
    params, normalize = control.unraveler(agent)(train.params), control.normalizer(train.trackers)

    def act(key: jax.Array, observation: jax.Array) -> jax.Array:
        outputs = agent.policy(params, normalize(observation[None]))
        actions = agent.distribution.sample(outputs, agent.distribution.noise(key, (1,)))
        return agent.distribution.to_env(actions)[0]

    def value(observations: jax.Array) -> jax.Array:
        return algorithm.objective.values(agent.value(params, normalize(observations)))

    return Teacher(act, value)
