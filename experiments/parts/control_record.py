"""Recording of transitions from a run that plays: a folder of npz that control.offline reads (dataset.path)."""

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from experiments.parts import control_loop, origin
from experiments.parts.control_auxiliary import with_auxiliary
from experiments.parts.control_objectives import one_policy
from experiments.parts.control_setup import NETWORKS, load_env, make_algorithm, make_network, settings_of
from experiments.parts.processes import to_host
from rl_jax import control, envs
from rl_jax.data import transitions as files
from rl_jax.rollout.envs.steps import collect, start
from rl_jax.training import distributed

SETTINGS = "settings.json"


def make_recorder(config) -> Callable:
    """The recorder of episodes; if config.record.path is set it also writes transitions of the current policy.

    At every checkpoint, and before the first update, record.num_envs environments act for record.num_steps steps with
    the first run's policy, and PATH/step_00000100.npz is written. A resumed run writes the same files again. The
    folder is this run's, whose settings are kept in PATH/settings.json: control.offline reads all files of a folder.

    Args:
      config: of the run.

    Returns:
      recorded(state of all runs, updates) -> rows of episodes.jsonl.

    Raises:
      ChangedError: if the folder has recordings of a run with other settings, or of an unknown one.
    """
    recorded = control_loop.make_recorder(config)
    if not config.record.path:
        return recorded
    folder = pathlib.Path(config.record.path).expanduser()
    _keep_settings(config, folder)
    gather = make_gather(config)

    def both(state: control.ControlState, step: int) -> list[dict[str, Any]]:
        rows = gather(state)
        if distributed.is_main():
            files.write(folder / f"step_{step:08d}.npz", as_recorded(rows, config, step))
        return recorded(state, step)

    return both


def _keep_settings(config, folder: pathlib.Path) -> None:
    """Keeps what the recordings in a folder are made with, and refuses a folder with others."""
    settings, made = origin.but_for_length(config), any(folder.glob("*.npz"))
    del settings["record"]["path"]  # the folder itself, which may be spelled in several ways
    if made or distributed.is_main():
        origin.keep(folder / SETTINGS, settings, made=made, place="--config.record.path")


def make_gather(config) -> Callable:
    """Makes state of all runs -> rollout.envs.steps.Transitions [B, T] of the first run's policy, on the host."""
    env = load_env(config, config.record.num_envs, learning=True)
    algorithm = make_algorithm(settings_of(config))._replace(minibatches=1)
    agent = make_network(config, env, algorithm.objective.num_outputs())
    agent = with_auxiliary(config, config.algorithm.auxiliary.to_dict(), agent, env).agent
    keywords = NETWORKS[config.network.kind][1]
    env = envs.scalarized(env) if env.objectives else env
    policy_of = control.make_update(agent, env, algorithm, optax.identity(), num_steps=1, **keywords)[2]

    def rollout(train):
        key = jax.random.fold_in(jax.random.fold_in(train.rng, 2**31 - 3), train.step)
        env_key, act_key = jax.random.split(key)
        worlds = start(env, env_key, agent.initial_state(env.num_envs))
        policy = policy_of(control.ControlState(one_policy(train), (), ()))
        rows = collect(policy, agent.distribution, env, worlds, act_key, num_steps=config.record.num_steps)[1]
        return rows._replace(actions=agent.distribution.to_env(rows.actions))

    options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None  # compiles faster
    compiled = jax.jit(rollout, compiler_options=options)
    first = (0, 0) if config.spread == "pmap" else 0
    return lambda state: jax.device_get(compiled(to_host(jax.tree.map(lambda x: x[first], state.train))))


def as_recorded(rows, config, step: int) -> files.Recorded:
    """The file's content. rows: Transitions [B, T] in the environment's units; a row's last step ends its episode."""
    truncated = np.array(rows.truncated)
    truncated[:, -1] |= ~rows.terminated[:, -1]
    arrays = {name: getattr(rows, name) for name in list(files.FIELDS)[:4]}
    arrays |= dict(terminated=rows.terminated, truncated=truncated)
    flat = {name: np.asarray(x).reshape(-1, *x.shape[2:]) for name, x in arrays.items()}
    name = f"{config.name}, seed {config.seed}, update {step}"
    metadata = dict(env=config.env.name, sources=[name], behaviours=[name])
    return files.check(name, flat, metadata)
