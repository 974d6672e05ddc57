"""One run of experiments.control.offline with algorithm.fn "bq_nco": a transformer that imitates optimal tours.

The data are whole tours of the scripted expert, who solves each by dynamic programming. A batch has random parts of
them (envs.worlds.salesman.path_of). eval/gap_N is how much longer the policy's greedy tours of N cities are than the
shortest ones of the same cities, in percent, for each N of tours.cities: the weights are the same for all. eval/beam_N
is the same of a beam search.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.parts import offline_data, offline_runs
from rl_jax import envs
from rl_jax.control import offline
from rl_jax.control.offline import data as datasets
from rl_jax.core.binding import bind
from rl_jax.envs.worlds import salesman, scripted
from rl_jax.models.agents.offline_networks import OfflineNetworks
from rl_jax.models.agents.set_policy import SetPolicy, make_set_policy
from rl_jax.rollout.envs.beam import beam_search
from rl_jax.rollout.envs.steps import memoryless


def check(config) -> None:
    """Raises ValueError for other data than optimal tours as they are, or sizes that have no answer or no part."""
    fields, cities, settings = config.tours, config.env.get("cities"), config.dataset
    if scripted.CONTROLLERS.get(config.env.name) is not salesman.controller:
        raise ValueError(f"env.name={config.env.name!r}: algorithm.fn='bq_nco' is of tours, probes/salesman")
    if extra := sorted({"labels", "ope", "imagined", "online", "continual"} & set(config)):
        raise ValueError(f"algorithm.fn='bq_nco' imitates optimal tours: leave out {', '.join(extra)}")
    if settings.path or tuple(settings.behaviours) != ("expert",) or settings.normalize_observations or settings.mixing:
        raise ValueError(
            "algorithm.fn='bq_nco' imitates optimal tours: it needs dataset.behaviours=('expert',), dataset.path='', "
            "dataset.mixing=() and dataset.normalize_observations=False"
        )
    if config.env.features or config.env.frame_stack > 1:
        raise ValueError(
            "algorithm.fn='bq_nco' reads observations as they are: leave out env.features and env.frame_stack"
        )
    if cities is None:
        raise ValueError("algorithm.fn='bq_nco' imitates optimal tours of env.cities cities: set it")
    if settings.num_steps < cities - 1:
        raise ValueError(f"dataset.num_steps={settings.num_steps} has no whole tour of env.cities={cities}")
    if fields.beam < 1:
        raise ValueError(f"tours.beam={fields.beam} must be 1, none, or more")
    if not 1 <= fields.smallest < cities:
        raise ValueError(f"tours.smallest={fields.smallest} must be from 1 to below env.cities={cities}")
    if not all(2 < size <= salesman.MOST_CITIES for size in (cities, *fields.cities)):
        raise ValueError(
            f"env.cities={cities} and tours.cities={tuple(fields.cities)} must be from 3 to {salesman.MOST_CITIES}: "
            "the shortest tours have to be found"
        )


def make_sample(num_envs: int, num_steps: int, *, smallest: int) -> Callable:
    """Makes (OfflineData, key, size) -> OfflineData [size]: random parts of random tours, in either direction.

    The number of cities between a part's ends is uniform from `smallest` to n - 1, drawn for each row. Departs: in
    naver/bq-nco a whole batch has one number, and each part ends where its tour does.

    Args:
      num_envs: B of the data.
      num_steps: T of the data, of which whole tours are read.
      smallest: fewest cities between the ends.
    """

    def sample(data: datasets.OfflineData, key: jax.Array, size: int) -> datasets.OfflineData:
        observations = data.steps.observations
        length = (observations.shape[1] - 2) // 3  # of a tour, in steps
        each = num_steps // length
        row_key, first_key, count_key, turn_key = jax.random.split(key, 4)
        row = jax.random.randint(row_key, (size,), 0, num_envs * each)
        index = (row // each * num_steps + row % each * length)[:, None] + jnp.arange(length)[None]
        tours = jax.vmap(salesman.tour_of)(observations[index])
        first = jax.random.randint(first_key, (size,), 0, length + 1)
        count = jax.random.randint(count_key, (size,), smallest, length + 1)
        seen, actions = jax.vmap(salesman.path_of)(tours, first, count, jax.random.bernoulli(turn_key, shape=(size,)))
        batch = datasets.take(data, index[:, 0])
        return batch._replace(steps=batch.steps._replace(observations=seen, actions=actions))

    return sample


def make_model(config) -> SetPolicy:
    """The network of config.sequence."""
    return make_set_policy(**config.sequence.to_dict())


def tour_method(config, networks: OfflineNetworks, algorithm: dict) -> offline_runs.Method:
    """A transformer over the cities that are left. Arguments: as for `offline_runs.step_method`."""
    model = make_model(config)
    nets = networks._replace(init=model.init, policy=model.policy)
    settings = config.dataset
    sample = make_sample(settings.num_envs, settings.num_steps, smallest=config.tours.smallest)

    def act(params, loaded: offline_data.Loaded):
        return memoryless(lambda observations: model.policy(params, observations))

    return offline_runs.Method(
        model.init, bind(algorithm, offline)(nets), sample, act, lambda rows: (), networks.distribution
    )


def gaps(config, policy: Callable, key: jax.Array) -> dict[str, jax.Array]:
    """100 (length / shortest - 1), float32 [] by name, means over config.eval.num_episodes random instances.

    Args:
      config: its groups env, eval and tours.
      policy: observations [B, 3 n - 1] -> logits [B, n - 1], for any n.
      key: of the instances.

    Returns:
      eval/gap_N of greedy tours of N cities for each N of tours.cities; eval/beam_N, if tours.beam is above 1, of the
      shortest of so many tours that a beam search keeps.
    """
    found = {}
    for cities in config.tours.cities:
        env = envs.load(config.env.name, cities=cities)
        keys = jax.random.split(key, config.eval.num_episodes)
        shortest = jax.vmap(lambda key, env=env: salesman.rest_of(env.reset(key)[1])[0])(keys)
        for name, width in (("gap", 1), ("beam", config.tours.beam)):
            if name == "gap" or width > 1:
                search = functools.partial(beam_search, policy, env, width=width, num_steps=cities - 1)
                found[f"eval/{name}_{cities}"] = 100.0 * jnp.mean(-jax.vmap(search)(keys) / shortest - 1.0)
    return found


def make_tour_run(config, *, parts: int = 1, axis_name: str | None = None):
    """Makes the pure functions of one run, as control_runs.make_run.

    Args:
      config: of the program.
      parts: devices per run; 1.
      axis_name: None.

    Returns:
      (init, advance, params).

    Raises:
      ValueError: see `check`.
    """
    check(config)
    init, learn, params = offline_runs.make_offline_run(config, parts=parts, axis_name=axis_name, method=tour_method)
    model = make_model(config)

    def advance(state: offline_runs.OfflineState, values: dict[str, jax.Array], count: int):
        state, metrics = learn(state, values, count)
        key = jax.random.fold_in(jax.random.fold_in(state.train.rng, 2**31 - 2), state.train.step)

        def policy(observations: jax.Array) -> jax.Array:
            return model.policy(params(state), observations)

        return state, metrics | gaps(config, policy, key)

    return init, advance, params
