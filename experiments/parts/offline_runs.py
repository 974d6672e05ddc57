"""One run of experiments.control_offline as pure functions: the data, the fit, the evaluation."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.parts import control_runs, control_setup, offline_data
from rl_jax.control import offline
from rl_jax.control.offline import data as datasets
from rl_jax.control.offline import recipe as recipes
from rl_jax.core.binding import bind
from rl_jax.rollout.envs.steps import memoryless
from rl_jax.training.step import TrainState


class OfflineState(NamedTuple):
    """State of a run.

    Attributes:
      train: TrainState of the networks, with the target networks.
      loaded: offline_data.Loaded; it does not change.
    """

    train: TrainState
    loaded: offline_data.Loaded


class Method(NamedTuple):
    """A method of a config, ready to be fitted.

    Attributes:
      init: (key) -> params.
      recipe: recipe.Recipe.
      sample: (data, key, batch_size) -> what the loss reads; None: single steps.
      act: (params, Loaded) -> a policy of Worlds, as rollout.envs.steps takes it.
      memory: (B) -> its memory at an episode's start.
      distribution: of the policy's actions.
    """

    init: Callable
    recipe: recipes.Recipe
    sample: Callable | None
    act: Callable
    memory: Callable
    distribution: Any


def step_method(config, networks, algorithm: dict[str, Any]) -> Method:
    """A method whose policy reads single observations. algorithm: config.algorithm, numbers may be traced."""
    recipe = bind(algorithm, offline)(networks)

    def act(params, loaded: offline_data.Loaded):
        return memoryless(lambda o: networks.policy(params, datasets.normalized(o, loaded.moments)))

    return Method(networks.init, recipe, None, act, lambda rows: (), networks.distribution)


def check_one_device(config, parts: int) -> None:
    """Raises ValueError if the run is to spread its envs over devices, which it has none of."""
    if parts > 1:
        raise ValueError(f"mesh={config.mesh!r}: offline runs have no envs to spread; use seeds:N")
    if config.eval.num_episodes < 1:
        raise ValueError(f"eval.num_episodes={config.eval.num_episodes} must be 1 or more: returns are the result")


def make_offline_run(config, *, parts: int = 1, axis_name: str | None = None, method: Callable = step_method):
    """Makes the pure functions of one run, as control_runs.make_run.

    Args:
      config: of the program.
      parts: devices per run; 1.
      axis_name: None.
      method: (config, networks, algorithm) -> Method.

    Returns:
      (init, advance, params).
    """
    check_one_device(config, parts)
    settings = control_setup.settings_of(config)
    env = control_setup.load_env(config, 1)
    networks = offline_data.make_offline_networks(config, env)
    load = offline_data.make_loader(config, networks, config.dataset.discount)
    eval_env = control_setup.load_env(config, config.eval.num_episodes)

    def parts_of(values: dict[str, jax.Array]):
        result = control_setup.with_values(settings, values)
        own = method(config, networks, result["algorithm"])
        adam = dict(result["train"]["optimizer"])
        fit = recipes.make_fit(
            own.recipe,
            adam.pop("learning_rate"),
            batch_size=config.train.batch_size,
            max_grad_norm=config.train.max_grad_norm,
            shares=tuple(config.dataset.mixing),
            sample=own.sample,
            **adam,
        )
        return own, *fit

    def init(key: jax.Array, values: dict[str, jax.Array]) -> OfflineState:
        init_key, load_key, fit_key = jax.random.split(key, 3)
        own, begin, _ = parts_of(values)
        return OfflineState(begin(own.init(init_key), fit_key), load(load_key))

    def advance(state: OfflineState, values: dict[str, jax.Array], count: int):
        own, _, fit = parts_of(values)
        train, metrics = fit(state.train, state.loaded.data, count)
        policy, memory = own.act(train.params, state.loaded), own.memory(eval_env.num_envs)
        metrics |= control_runs.judge(config, policy, own.distribution, eval_env, train, memory)
        metrics |= offline_data.scores(metrics["eval/return"], state.loaded)
        return state._replace(train=train), jax.tree.map(jnp.float32, metrics)

    return init, advance, lambda state: state.train.params
