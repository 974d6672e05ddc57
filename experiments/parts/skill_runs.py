"""One run of experiments.control.offline with algorithm.fn "psec": a base, its skills, and their composition.

The tasks are those of continual.values: the base's, one for each skill, and the new one. The updates are shared out
evenly; Adam, the critics and the value start anew with each task. eval/return and eval/normalized are of the present
task, eval/single_k of the new one by what is there already: 0 is the base alone, k skill k alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.parts import continual_runs, control_runs, control_setup, offline_data, offline_runs
from rl_jax.control import offline
from rl_jax.control.offline import skills
from rl_jax.core.binding import bind
from rl_jax.models.agents.skills import make_skill_networks
from rl_jax.rollout.envs.steps import memoryless
from rl_jax.training.step import TrainState


class SkillState(NamedTuple):
    """State of a run.

    Attributes:
      train: TrainState of the networks, with the target networks.
      loaded: offline_data.Loaded [K + 2], of each task.
    """

    train: TrainState
    loaded: offline_data.Loaded


def renewed(train: TrainState, task: jax.Array, init: Callable, begin: Callable) -> TrainState:
    """The state in which a task begins: the policy as it is, all else as at the start of a run.

    Args:
      train: as the last task left it.
      task: int32 [], its number.
      init: (key) -> params.
      begin: (params, key) -> TrainState, of recipe.make_fit.
    """
    params = {**init(jax.random.fold_in(train.rng, 2**31 - 5 - task)), "policy": train.params["policy"]}
    fresh = begin(params, train.rng)
    return train._replace(params=fresh.params, opt_state=fresh.opt_state, trackers=fresh.trackers)


def make_skill_run(config, *, parts: int = 1, axis_name: str | None = None):
    """Makes the pure functions of one run, as control_runs.make_run, for config.algorithm "psec".

    Args:
      config: of the program.
      parts: devices per run; 1.
      axis_name: None.

    Returns:
      (init, advance, params).

    Raises:
      ValueError: if there is no skill between the base's task and the new one.
    """
    offline_runs.check_one_device(config, parts)
    continual_runs.check_fields(config)
    configs, settings = continual_runs.task_configs(config), control_setup.settings_of(config)
    if len(configs) < 3:
        raise ValueError(f"continual.values={config.continual['values']}: psec has a base, skills and a new task")
    env, per_task = control_setup.load_env(config, 1), continual_runs.updates_per_task(config)
    count_skills = len(configs) - 2
    single = offline_data.make_offline_networks(config, env)
    networks = make_skill_networks(
        env.observation_space.shape, single, skills=count_skills, **config.skills.to_dict(), **config.network.to_dict()
    )
    load = continual_runs.load_tasks(configs, single)
    eval_envs = [control_setup.load_env(own, config.eval.num_episodes) for own in configs]

    def fit_of(values: dict[str, jax.Array]):
        result = control_setup.with_values(settings, values)
        algorithm = result["algorithm"]
        recipe = bind(algorithm | dict(base=bind(algorithm["base"], offline)), offline)(networks)
        return offline_runs.fit_of(config, result, recipe, sample=skills.sample_present)

    def returns(train: TrainState, eval_env, task: jax.Array) -> jax.Array:
        """The mean return of stage `task`'s policy."""
        policy = train.params["policy"]

        def outputs(observations: jax.Array) -> jax.Array:
            coefs = skills.stage_coefs(networks.weights(policy, observations), task)
            return networks.composed(policy, observations, coefs)

        return control_runs.judge(config, memoryless(outputs), single.distribution, eval_env, train)["eval/return"]

    def init(key: jax.Array, values: dict[str, jax.Array]) -> SkillState:
        init_key, load_key, fit_key = jax.random.split(key, 3)
        return SkillState(fit_of(values)[0](networks.init(init_key), fit_key), load(load_key))

    def advance(state: SkillState, values: dict[str, jax.Array], count: int):
        begin, fit = fit_of(values)
        task, starts = state.train.step // per_task, state.train.step % per_task == 0
        fresh = renewed(state.train, task, networks.init, begin)
        train = jax.tree.map(lambda new, old: jnp.where(starts, new, old), fresh, state.train)
        train, metrics = fit(train, skills.SkillTasks(state.loaded.data, task), count)
        new = jax.lax.map(lambda k: returns(train, eval_envs[-1], k), jnp.arange(count_skills + 2))
        own = [lambda train, e=e: returns(train, e, task) for e in eval_envs[:-1]]
        found = jax.lax.switch(task, [*own, lambda train: new[-1]], train)
        low, high = jnp.moveaxis(state.loaded.references, 1, 0)

        def normalized(value: jax.Array, k: jax.Array) -> jax.Array:
            return offline_data.normalized(value, low[k], high[k])

        metrics |= {"eval/return": found, "eval/normalized": normalized(found, task), "task": task}
        metrics |= {f"eval/single_{k}": normalized(new[k], -1) for k in range(count_skills + 1)}
        return SkillState(train, state.loaded), jax.tree.map(jnp.float32, metrics)

    return init, advance, lambda state: state.train.params
