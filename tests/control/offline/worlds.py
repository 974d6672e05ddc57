"""Small offline problems for tests: data of mixed quality, and one compiled evaluation for all methods."""

import functools

import jax
import jax.numpy as jnp

from configs.control import offline as configs
from experiments.parts import control_runs, control_setup, offline_data, offline_runs
from rl_jax.control.offline import recipe as recipes

# Compiles in a third of the time; the runs are short.
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
jitted = functools.partial(jax.jit, compiler_options=QUICK)  # one program, in place of one for each operation
SEEDS = 3


def quick(fn, *args):
    """fn of each seed's own arguments, one after the other, in one program."""
    return jax.jit(lambda *args: jax.lax.map(lambda own: fn(*own), args), compiler_options=QUICK)(*args)


def small(words: str, **fields):
    """A config with networks of 32 units, and these fields; data__num_envs is dataset.num_envs."""
    config = configs.get_config(words)
    config.network.hidden = (32,)
    config.dataset.num_envs, config.dataset.num_steps = 20, 60
    config.log.update(progress=False, tensorboard=False)
    with config.unlocked():
        config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return config


@functools.cache
def world(place: str, behaviours: tuple = (), shares: tuple = ()):
    """(config, networks, Loaded of SEEDS seeds, judge(params, Loaded, TrainState) -> metrics [SEEDS])."""
    config = small(f"{place},bc")
    if behaviours:
        config.dataset.update(behaviours=behaviours, shares=shares)
    env = control_setup.load_env(config, 1)
    networks = offline_data.make_offline_networks(config, env)
    loaded = quick(offline_data.make_loader(config, networks, config.dataset.discount), keys())
    eval_env = control_setup.load_env(config, config.eval.num_episodes)
    act = offline_runs.step_method(config, networks, config.algorithm.to_dict()).act

    def judge(params, loaded, rng):
        key = recipes.init_state({}, recipes.optax.identity(), rng)
        metrics = control_runs.judge(config, act(params, loaded), networks.distribution, eval_env, key)
        return metrics | offline_data.scores(metrics["eval/return"], loaded)

    compiled = jax.jit(lambda *args: jax.lax.map(lambda own: judge(*own), args), compiler_options=QUICK)
    return config, networks, loaded, lambda params, loaded: jax.device_get(compiled(params, loaded, keys()))


def keys():
    """One of each seed."""
    return jax.random.split(jax.random.key(7), SEEDS)


def make_fitted(networks, recipe, *, updates: int, batch_size: int = 64, rate: float = 3e-3, choice: bool = False):
    """Loaded of each seed -> (TrainState, metrics), compiled once.

    choice: `recipe` makes a Recipe of a traced number, and (Loaded, number) are the arguments.
    """

    def one(key, data, number):
        own = recipe(number) if choice else recipe
        begin, fit = recipes.make_fit(own, rate, batch_size=batch_size)
        init_key, fit_key = jax.random.split(key)
        return fit(begin(networks.init(init_key), fit_key), data, updates)

    # In lockstep: a step of a small network costs the same in one seed as in all. `switch` stays one: its number is
    # the same for all.
    compiled = jitted(jax.vmap(one, in_axes=(0, 0, None)))
    return lambda loaded, number=0: compiled(keys(), loaded.data, jnp.int32(number))
