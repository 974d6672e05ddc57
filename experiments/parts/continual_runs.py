"""One run of experiments.control.offline on tasks that come one after the other: data, fit, what is kept, evaluation.

A task is the environment with another value of one field, continual.field; the updates are shared out evenly. When a
task ends, continual.kept of its steps are kept and the rest is never read again. eval/return and eval/normalized are
means over the tasks so far; eval/forgetting is how far eval/normalized of the earlier ones has fallen since they ended.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.parts import control_runs, control_setup, offline_data, offline_runs
from rl_jax.control import offline
from rl_jax.control.offline import continual
from rl_jax.control.offline import data as datasets
from rl_jax.core.binding import bind
from rl_jax.models.agents.continual_networks import make_continual_networks
from rl_jax.rollout.envs.steps import memoryless
from rl_jax.training.step import TrainState


class ContinualState(NamedTuple):
    """State of a run.

    Attributes:
      train: TrainState of the networks, with the target networks.
      loaded: offline_data.Loaded [K], of each task.
      kept: continual.Kept.
      ended: float32 [K], eval/normalized of each task when it ended; 0 before.
    """

    train: TrainState
    loaded: offline_data.Loaded
    kept: continual.Kept
    ended: jax.Array


def task_configs(config) -> list:
    """The config of each task. Raises ValueError if there are fewer than two, or no group continual."""
    if "continual" not in config:
        raise ValueError(f"algorithm.fn={config.algorithm.fn!r} learns tasks: take configs/control/offline.py:oer")
    field, values = config.continual.field, config.continual["values"]
    if len(values) < 2:
        raise ValueError(f"continual.values={values}: a sequence has two tasks or more")
    found = []
    for value in values:
        own = config.copy_and_resolve_references()
        with own.unlocked():
            own.env[field] = value
        found.append(own)
    return found


def updates_per_task(config) -> int:
    """Updates of each task.

    Raises:
      ValueError: if they are not whole calls of log_every updates.
    """
    updates, count = control_setup.num_updates(config), len(config.continual["values"])
    if updates % (count * config.log_every):
        raise ValueError(
            f"train.total_steps={config.train.total_steps} are {updates} updates, which {count} tasks do not share "
            f"evenly in rows of log_every={config.log_every}"
        )
    return updates // count


def check_fields(config) -> None:
    """Raises ValueError for what a sequence of tasks would not heed."""
    if config.dataset.path or config.dataset.mixing or config.dataset.normalize_observations:
        raise ValueError("continual: dataset.path, mixing and normalize_observations are of one task; leave them as is")
    for group in ("labels", "ope", "imagined", "online"):
        if group in config:
            raise ValueError(f"{group}: it is of one task, and the config has a group continual; leave one of them out")


def load_tasks(configs, networks) -> Callable:
    """Makes key -> Loaded [K] of the tasks."""
    loaders = [offline_data.make_loader(own, networks, own.dataset.discount) for own in configs]

    def load(key: jax.Array) -> offline_data.Loaded:
        keys = jax.random.split(key, len(loaders))
        each = [loader(keys[k]) for k, loader in enumerate(loaders)]
        return jax.tree.map(lambda *x: jnp.stack(x), *each)

    return load


def standing(scores: jax.Array, ended: jax.Array, task: jax.Array, ends: jax.Array):
    """What the scores of K tasks say while task t is learned.

    Args:
      scores: float [K], of all tasks now.
      ended: float [K], of each when it ended.
      task: int [], t.
      ends: bool [], whether t ends now.

    Returns:
      (the mean over tasks 0 .. t, the mean fall of those before t since they ended, `ended` with t if it ends).
    """
    count = jnp.arange(len(scores))
    so_far = jnp.sum(jnp.where(count <= task, scores, 0.0)) / (task + 1)
    fallen = jnp.sum(jnp.where(count < task, ended - scores, 0.0)) / jnp.maximum(task, 1)
    return so_far, fallen, jnp.where((count == task) & ends, scores, ended)


def make_continual_run(config, *, parts: int = 1, axis_name: str | None = None):
    """Makes the pure functions of one run, as control_runs.make_run, for config.algorithm "oer".

    Args:
      config: of the program.
      parts: devices per run; 1.
      axis_name: None.

    Returns:
      (init, advance, params).
    """
    offline_runs.check_one_device(config, parts)
    check_fields(config)
    configs, settings, fields = task_configs(config), control_setup.settings_of(config), config.continual
    env, per_task, tasks = control_setup.load_env(config, 1), updates_per_task(config), len(configs)
    single = offline_data.make_offline_networks(config, env)
    shape = env.observation_space.shape
    networks = make_continual_networks(shape, single, tasks=tasks, **config.network.to_dict())
    load = load_tasks(configs, single)
    eval_envs = [control_setup.load_env(own, config.eval.num_episodes) for own in configs]
    starts = -(-fields.kept // fields.horizon)

    def fit_of(values: dict[str, jax.Array]):
        result = control_setup.with_values(settings, values)
        recipe = bind(result["algorithm"], offline)(networks)
        return offline_runs.fit_of(config, result, recipe, sample=continual.sample_tasks)

    def policy(params, observations: jax.Array) -> jax.Array:
        return single.distribution.mode(single.policy(params, observations))

    def chosen(train: TrainState, own: datasets.OfflineData) -> continual.Kept:
        """What is kept of a task that has just been learned."""
        key = jax.random.fold_in(jax.random.fold_in(train.rng, 2**31 - 3), train.step)
        observations = own.steps.observations
        if config.algorithm.get("select", True):
            index = continual.select_by_model(
                lambda states: policy(train.params, states),
                lambda states, actions: networks.model(train.params, states, actions),
                observations,
                continual.episode_starts(own, key, starts),
                horizon=fields.horizon,
            ).reshape(-1)[: fields.kept]
        else:
            index = jax.random.randint(key, (fields.kept,), 0, len(observations))
        return continual.Kept(observations[index], policy(train.params, observations[index]))

    def init(key: jax.Array, values: dict[str, jax.Array]) -> ContinualState:
        init_key, load_key, fit_key = jax.random.split(key, 3)
        kept = continual.Kept(jnp.zeros((tasks, fields.kept, *shape)), jnp.zeros((tasks, fields.kept, single.size)))
        train = fit_of(values)[0](networks.init(init_key), fit_key)
        return ContinualState(train, load(load_key), kept, jnp.zeros(tasks))

    def advance(state: ContinualState, values: dict[str, jax.Array], count: int):
        task, data = state.train.step // per_task, state.loaded.data
        train, metrics = fit_of(values)[1](state.train, continual.Tasks(data, state.kept, task), count)
        ends = train.step % per_task == 0
        fresh = chosen(train, jax.tree.map(lambda x: x[task], data))
        kept = jax.tree.map(lambda old, new: jnp.where(ends, old.at[task].set(new), old), state.kept, fresh)
        each = []
        for k, eval_env in enumerate(eval_envs):
            acts = memoryless(lambda o, k=k: networks.clone(train.params, o, k))
            each.append(control_runs.judge(config, acts, single.distribution, eval_env, train)["eval/return"])
        returns = jnp.stack(each)
        scores = offline_data.normalized(returns, *jnp.moveaxis(state.loaded.references, 1, 0))
        normalized, fallen, ended = standing(scores, state.ended, task, ends)
        metrics |= {f"eval/task_{k}": scores[k] for k in range(tasks)}
        metrics |= {"eval/return": standing(returns, returns, task, ends)[0], "eval/normalized": normalized}
        metrics |= {"eval/forgetting": fallen, "task": task}
        return ContinualState(train, state.loaded, kept, ended), jax.tree.map(jnp.float32, metrics)

    return init, advance, lambda state: state.train.params
