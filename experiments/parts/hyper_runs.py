"""One run of experiments.control.offline with algorithm.fn "hypercrl": dynamics of tasks that come one after the other.

A task begins with the steps of dataset.behaviours. After every row of metrics the planner (CEM on the model, with the
world's known reward) acts in every task: that is its evaluation, and in the newest task its steps join the data.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.parts import continual_runs, control_setup, offline_data, offline_runs
from rl_jax.control import dynamics, offline
from rl_jax.control.offline import hypernetwork
from rl_jax.control.transitions import Transitions
from rl_jax.core.binding import bind
from rl_jax.envs.worlds import scripted
from rl_jax.models.agents.hypernetwork import make_hyper_dynamics
from rl_jax.rollout.envs.steps import collect, start
from rl_jax.training.step import TrainState


class HyperState(NamedTuple):
    """State of a run.

    Attributes:
      train: TrainState of the hypernetwork and the embeddings.
      steps: Transitions [K, N]; actions in [-1, 1].
      filled: int32 [K], rows of them that there are.
      before: float32 [K, P], the weights of each task when the newest one began.
      references: float32 [K, 2], the returns that count as 0 and 100.
      ended: float32 [2, K], eval/normalized and the model's error of each task when it ended.
    """

    train: TrainState
    steps: Transitions
    filled: jax.Array
    before: jax.Array
    references: jax.Array
    ended: jax.Array


def first_returns(rewards: jax.Array, done: jax.Array) -> jax.Array:
    """The mean over rows of the sum of rewards up to the first end: float []. rewards: [B, T]. done: bool [B, T]."""
    before = jnp.cumsum(done, axis=1) - done == 0
    return jnp.mean(jnp.sum(jnp.where(before, rewards, 0.0), axis=1))


def make_planner(config, networks, reward):
    """Makes (weights [P], key) -> a policy of Worlds whose outputs are actions, and whose memory is the plans.

    Args:
      config: its group `planner`.
      networks: HyperDynamics.
      reward: observations [..., D] that actions led to -> [...].
    """
    fields = config.planner.to_dict()
    horizon = fields.pop("horizon")

    def sums(weights: jax.Array, observation: jax.Array, plans: jax.Array) -> jax.Array:
        def ahead(states, actions):
            states = networks.predict(weights, states, actions)
            return states, reward(states)

        states = jnp.broadcast_to(observation, (len(plans), *observation.shape))
        return jnp.sum(jax.lax.scan(ahead, states, jnp.swapaxes(plans, 0, 1))[1], axis=0)

    def planner(weights: jax.Array, key: jax.Array):
        def one(observation, plan, time, row):
            own = jax.random.fold_in(jax.random.fold_in(key, row), time)
            plan = jnp.where(time > 0, plan, 0.0)
            plan = dynamics.cem(lambda plans: sums(weights, observation, plans), plan, own, **fields)
            return plan[0], jnp.concatenate([plan[1:], jnp.zeros_like(plan[:1])])

        def policy(worlds):
            rows = jnp.arange(len(worlds.observation))
            return jax.vmap(one)(worlds.observation, worlds.memory, worlds.episode_length, rows)

        return policy

    return planner, lambda rows, size: jnp.zeros((rows, horizon, size))


def grown(steps: Transitions, filled: jax.Array, task: jax.Array, fresh: Transitions):
    """(steps [K, N] with `fresh` [M] behind the task's `filled` rows, filled with M more)."""
    steps = jax.tree.map(
        lambda old, new: jax.lax.dynamic_update_slice(
            old, new[None].astype(old.dtype), (task, filled[task], *(0,) * (new.ndim - 1))
        ),
        steps,
        fresh,
    )
    return steps, filled.at[task].add(len(fresh.rewards))


def first_errors(networks, params, steps: Transitions, count: int) -> jax.Array:
    """The model's mean error of the first `count` of the steps [K, N] of each task, those of the behaviours: [K]."""
    each = [jax.tree.map(lambda x, k=k: x[k, :count], steps) for k in range(networks.tasks)]
    errors = [hypernetwork.prediction_errors(networks, params, rows, k) for k, rows in enumerate(each)]
    return jnp.stack([jnp.mean(x) for x in errors])


def standings(returns: jax.Array, errors: jax.Array, references: jax.Array, ended: jax.Array, task, ends):
    """The metrics of K tasks while task t is learned, and `ended` with t's if it ends now.

    Args:
      returns: float [K], of the planner in each task.
      errors: float [K], of the model in each task.
      references: float [K, 2], the returns that count as 0 and 100.
      ended: float [2, K], of HyperState.
      task: int [], t.
      ends: bool [].

    Returns:
      ({name: float []}, float [2, K]).
    """
    scores = offline_data.normalized(returns, *jnp.moveaxis(references, 1, 0))
    normalized, fallen, scores_ended = continual_runs.standing(scores, ended[0], task, ends)
    error, sunk, errors_ended = continual_runs.standing(errors, ended[1], task, ends)
    metrics = {f"eval/task_{k}": x for k, x in enumerate(scores)} | {f"model/task_{k}": x for k, x in enumerate(errors)}
    metrics |= {"eval/return": continual_runs.standing(returns, returns, task, ends)[0]}
    metrics |= {"eval/normalized": normalized, "eval/forgetting": fallen}
    return metrics | {"model/error": error, "model/forgetting": -sunk}, jnp.stack([scores_ended, errors_ended])


def make_hyper_run(config, *, parts: int = 1, axis_name: str | None = None):
    """Makes the pure functions of one run, as control_runs.make_run.

    Args:
      config: of the program.
      parts: devices per run; 1.
      axis_name: None.

    Returns:
      (init, advance, params).

    Raises:
      ValueError: if the actions are finitely many, or the world's reward is not known to a planner.
    """
    offline_runs.check_one_device(config, parts)
    continual_runs.check_fields(config)
    configs, settings = continual_runs.task_configs(config), control_setup.settings_of(config)
    env, per_task, tasks = control_setup.load_env(config, 1), continual_runs.updates_per_task(config), len(configs)
    single, shape = offline_data.make_offline_networks(config, env), env.observation_space.shape
    if single.num_actions:
        raise ValueError(f"algorithm.fn='hypercrl' plans continuous actions, {config.env.name} has a finite set")
    rewards = [scripted.reward(**own.env.to_dict()) for own in configs]
    hyper = dict(embedding=config.hypernetwork.embedding, layers=tuple(config.hypernetwork.layers))
    networks = make_hyper_dynamics(shape, single.size, tasks=tasks, **hyper, **config.network.to_dict())
    load = continual_runs.load_tasks(configs, single)
    episodes, length = config.eval.num_episodes, config.eval.max_steps
    eval_envs = [control_setup.load_env(own, episodes) for own in configs]
    acted = single.distribution._replace(sample=lambda outputs, noise: outputs)
    room = per_task // config.log_every * episodes * length

    def fit_of(values: dict[str, jax.Array]):
        result = control_setup.with_values(settings, values)
        make = functools.partial(hypernetwork.make_hyper_fit, networks)
        return offline_runs.fit_of(config, result, bind(result["algorithm"], offline)(networks), make)

    def planned(k: int, weights: jax.Array, key: jax.Array) -> tuple[jax.Array, Transitions]:
        """The planner in task k with these weights: (its return, its steps [M])."""
        start_key, plan_key, act_key = jax.random.split(key, 3)
        planner, empty = make_planner(config, networks, rewards[k])
        worlds = start(eval_envs[k], start_key, empty(episodes, single.size))
        steps = collect(planner(weights, plan_key), acted, eval_envs[k], worlds, act_key, num_steps=length)[1]
        returned = first_returns(steps.rewards, steps.terminated | steps.truncated)
        flat = (steps.observations, steps.actions, steps.rewards, steps.next_observations)
        flat = Transitions(*flat, steps.terminated, steps.truncated)
        return returned, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), flat)

    def init(key: jax.Array, values: dict[str, jax.Array]) -> HyperState:
        init_key, load_key, fit_key = jax.random.split(key, 3)
        loaded = load(load_key)
        steps = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, room)) + ((0, 0),) * (x.ndim - 2)), loaded.data.steps)
        filled = jnp.full(tasks, loaded.data.time.shape[1], jnp.int32)
        train = fit_of(values)[0](networks.init(init_key), fit_key)
        before = jnp.zeros((tasks, networks.size))
        return HyperState(train, steps, filled, before, loaded.references, jnp.zeros((2, tasks)))

    def advance(state: HyperState, values: dict[str, jax.Array], count: int):
        _, renew, fit = fit_of(values)
        task, begins = state.train.step // per_task, state.train.step % per_task == 0
        made = networks.weights(state.train.params["hyper"], state.train.params["embeddings"])
        before = jnp.where(begins, made, state.before)
        own = jax.tree.map(lambda new, old: jnp.where(begins, new, old), renew(state.train), state.train)
        of_task = jax.tree.map(lambda x: x[task], state.steps)
        train, metrics = fit(own, of_task, state.filled[task], task, before, count)
        made = networks.weights(train.params["hyper"], train.params["embeddings"])
        key = jax.random.fold_in(jax.random.fold_in(train.rng, 2**31 - 1), train.step)
        returns, fresh = zip(*(planned(k, made[k], jax.random.fold_in(key, k)) for k in range(tasks)), strict=True)
        fresh = jax.tree.map(lambda *x: jnp.stack(x)[task], *fresh)
        errors = first_errors(networks, train.params, state.steps, state.steps.rewards.shape[1] - room)
        steps, filled = grown(state.steps, state.filled, task, fresh)
        ends = train.step % per_task == 0
        measured, ended = standings(jnp.stack(returns), errors, state.references, state.ended, task, ends)
        metrics |= measured | {"task": task}
        state = HyperState(train, steps, filled, before, state.references, ended)
        return state, jax.tree.map(jnp.float32, metrics)

    return init, advance, lambda state: state.train.params
