"""One run of experiments.control.offline as pure functions: the data, the fit, the evaluation."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.parts import control_runs, control_setup, offline_data
from rl_jax.control import offline
from rl_jax.control.offline import data as datasets
from rl_jax.control.offline import evaluation, labelling, sequence
from rl_jax.control.offline import hindsight as episodes
from rl_jax.control.offline import recipe as recipes
from rl_jax.core.binding import bind
from rl_jax.models.agents import decision_transformer, hindsight, history, region_transformer
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
    partly = "labels" in config and config.labels.missing == "actions" and not config.labels.fill

    def act(params, loaded: offline_data.Loaded):
        return memoryless(lambda o: networks.policy(params, datasets.normalized(o, loaded.moments)))

    sample = labelling.only_labelled if partly else None
    return Method(networks.init, recipe, sample, act, lambda rows: (), networks.distribution)


def sequence_method(
    config,
    networks,
    algorithm: dict[str, Any],
    *,
    make: Callable = decision_transformer.make_decision_transformer,
) -> Method:
    """A decision transformer, asked for a return at each step. Arguments: as for `step_method`.

    make: makes the model of config.sequence.

    Raises:
      ValueError: if eval.greedy is off: the policy remembers the likeliest action, not a sampled one.
    """
    if not config.eval.greedy:
        raise ValueError("eval.greedy=False: a decision transformer acts by its likeliest action; set it True")
    shape = control_setup.load_env(config, 1).observation_space.shape
    fields, target, scale = config.sequence.to_dict(), algorithm["target"], algorithm["scale"]
    model = make(shape, networks.distribution, networks.encode, networks.size, **fields)

    def act(params, loaded: offline_data.Loaded):
        low, high = loaded.references
        asked = low + target * (high - low)

        def policy(worlds):
            observations = datasets.normalized(worlds.observation, loaded.moments)
            to_go = (asked - worlds.episode_return) / scale
            memory = decision_transformer.extended(worlds.memory, to_go, observations, worlds.episode_length)
            outputs = model.act(params, memory)
            chosen = networks.encode(networks.distribution.mode(outputs))
            return outputs, memory._replace(actions=memory.actions.at[:, -1].set(chosen))

        return policy

    return Method(
        model.init,
        bind(algorithm, offline)(model),
        functools.partial(sequence.sample_windows, context=config.sequence.context),
        act,
        lambda rows: decision_transformer.empty(model, rows, shape),
        networks.distribution,
    )


def region_method(config, networks, algorithm: dict[str, Any]) -> Method:
    """`sequence_method` with regions of the action space among what is seen.

    Raises:
      ValueError: if the actions are of a finite set, or as `sequence_method`.
    """
    if networks.num_actions:
        raise ValueError("algorithm.fn='region_dt' has regions of continuous actions; for a finite set choose mo_dt")
    return sequence_method(config, networks, algorithm, make=region_transformer.make_region_transformer)


def hindsight_method(config, networks, algorithm: dict[str, Any]) -> Method:
    """OPPO: the policy acts by the code that preferences between episodes chose. Arguments: as for `step_method`."""
    env = control_setup.load_env(config, 1)
    model = hindsight.make_hindsight_policy(
        env.observation_space.shape,
        networks,
        kind=offline_data.action_kind(env),
        code=config.hindsight.code,
        **config.network.to_dict(),
    )

    def act(params, loaded: offline_data.Loaded):
        return memoryless(lambda o: model.policy(params, datasets.normalized(o, loaded.moments)))

    sample = functools.partial(episodes.sample_pairs, length=config.hindsight.length)
    return Method(model.init, bind(algorithm, offline)(model), sample, act, lambda rows: (), networks.distribution)


def history_method(config, networks, algorithm: dict[str, Any]) -> Method:
    """A method on codes of the last steps. Arguments: as for `step_method`.

    Raises:
      ValueError: if eval.greedy is off: the policy remembers the likeliest action, not a sampled one.
    """
    if not config.eval.greedy:
        raise ValueError("eval.greedy=False: a policy of histories acts by its likeliest action; set it True")
    env = control_setup.load_env(config, 1)
    shape, fields = env.observation_space.shape, config.history
    sizes = dict(code=fields.code, context=fields.context)
    model = history.make_history_networks(
        shape, kind=offline_data.action_kind(env), **sizes, **config.network.to_dict()
    )
    readers = model.readers

    def act(params, loaded: offline_data.Loaded):
        def policy(worlds):
            observations = datasets.normalized(worlds.observation, loaded.moments)
            unread = jnp.zeros_like(worlds.episode_return)
            memory = decision_transformer.extended(worlds.memory, unread, observations, worlds.episode_length)
            outputs = readers.policy(params, model.encode(params, memory))
            chosen = readers.encode(readers.distribution.mode(outputs))
            return outputs, memory._replace(actions=memory.actions.at[:, -1].set(chosen))

        return policy

    return Method(
        model.init,
        bind(algorithm | dict(base=bind(algorithm["base"], offline)), offline)(model),
        functools.partial(sequence.sample_windows, context=fields.context),
        act,
        lambda rows: decision_transformer.empty(model, rows, shape),
        readers.distribution,
    )


METHODS = {
    "dt": sequence_method,
    "mo_dt": sequence_method,
    "region_dt": region_method,
    "oppo": hindsight_method,
    "histories": history_method,
}  # algorithm.fn -> Method; others are step_method's
READ_RETURNS = (sequence_method, region_method)  # methods that read the episodes' returns


def check_one_device(config, parts: int) -> None:
    """Raises ValueError if the run is to spread its envs over devices, which it has none of."""
    if parts > 1:
        raise ValueError(f"mesh={config.mesh!r}: offline runs have no envs to spread; use seeds:N")
    if config.eval.num_episodes < 1:
        raise ValueError(f"eval.num_episodes={config.eval.num_episodes} must be 1 or more: returns are the result")


def check_unread(config) -> None:
    """Raises ValueError for what is hidden or mixed in the data if the method or the estimate would not heed it."""
    fn, fields = config.algorithm.fn, config.labels if "labels" in config else None
    left_out = fields is not None and fields.missing == "actions" and not fields.fill
    if config.dataset.mixing and (fn in METHODS or left_out):
        what = "labels.fill=False" if left_out else f"algorithm.fn={fn!r}"
        raise ValueError(f"dataset.mixing={config.dataset.mixing}: {what} draws its batches without it; set it to ()")
    if left_out and (fn in METHODS or "ope" in config):
        what = f"algorithm.fn={fn!r}" if fn in METHODS else "ope"
        raise ValueError(f"labels.fill=False: {what} would learn from the hidden actions' zeros; set labels.fill=True")
    unpaid = fields is not None and fields.missing in ("rewards", "preferences", "images")
    if unpaid and (METHODS.get(fn) in READ_RETURNS or "ope" in config):
        what = "ope" if "ope" in config else f"algorithm.fn={fn!r}"
        needed = "needs the environment's returns, learned rewards have none"
        raise ValueError(f"labels.missing={fields.missing!r}: {what} {needed}")


def make_estimate(config, networks) -> Callable:
    """Makes (TrainState, data) -> {"ope/fqe"}: the policy's mean value of the data's first states, by fitted Q.

    Discounted with dataset.discount. Without a group `ope` there is none. Critics are fitted anew for each row of
    metrics.

    Raises:
      ValueError: for a decision transformer, whose policy does not read single observations.
    """
    if "ope" not in config:
        return lambda train, data: {}
    if config.algorithm.fn in METHODS:
        raise ValueError(
            f"ope: algorithm.fn={config.algorithm.fn!r} has no policy of single observations; leave it out"
        )
    fields, discount = config.ope, config.dataset.discount

    def estimate(train: TrainState, data: datasets.OfflineData) -> dict[str, jax.Array]:
        def policy(observations: jax.Array) -> jax.Array:
            return networks.policy(train.params, observations)

        init_key, fit_key = jax.random.split(jax.random.fold_in(train.rng, 2**31 - 4))
        recipe = evaluation.fitted_q(networks, policy, discount=discount)
        begin, fit = recipes.make_fit(recipe, fields.learning_rate, batch_size=config.train.batch_size)
        state, _ = fit(begin(networks.init(init_key), fit_key), data, fields.updates)
        values = evaluation.policy_values(networks, state.params, policy, data.steps.observations)
        first = data.time == 0
        return {"ope/fqe": jnp.sum(jnp.where(first, values, 0.0)) / jnp.sum(first)}

    return estimate


def fit_of(config, values, recipe, make: Callable = recipes.make_fit, **options):
    """(begin, fit) of a recipe. values: algorithm and train of a run; make: takes what recipes.make_fit takes."""
    adam = dict(values["train"]["optimizer"])
    sizes = dict(batch_size=config.train.batch_size, max_grad_norm=values["train"]["max_grad_norm"])
    return make(recipe, adam.pop("learning_rate"), **sizes, **options, **adam)


def make_offline_run(config, *, parts: int = 1, axis_name: str | None = None, method: Callable | None = None):
    """Makes the pure functions of one run, as control_runs.make_run.

    Args:
      config: of the program.
      parts: devices per run; 1.
      axis_name: None.
      method: makes the Method, as `step_method`; None: that of METHODS.

    Returns:
      (init, advance, params).
    """
    check_one_device(config, parts)
    check_unread(config)
    settings, method = control_setup.settings_of(config), method or METHODS.get(config.algorithm.fn, step_method)
    env = control_setup.load_env(config, 1)
    networks = offline_data.make_offline_networks(config, env)
    load = offline_data.make_loader(config, networks, config.dataset.discount)
    eval_env = control_setup.load_env(config, config.eval.num_episodes)
    estimate = make_estimate(config, networks)

    def parts_of(values: dict[str, jax.Array]):
        result = control_setup.with_values(settings, values)
        own = method(config, networks, result["algorithm"])
        options = dict(shares=tuple(config.dataset.mixing), sample=own.sample)
        return own, *fit_of(config, result, own.recipe, **options)

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
        metrics |= estimate(train, state.loaded.data)
        return state._replace(train=train), jax.tree.map(jnp.float32, metrics)

    return init, advance, lambda state: state.train.params
