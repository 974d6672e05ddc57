"""One run of experiments.control.offline that goes on in the environment: first the data alone, then its own steps too.

In the first online.after of the updates only recorded steps are read, as in offline_runs. Then, every online.every
updates, the policy acts for as many steps, all environments together, and they join the data (arXiv 2408.08441: one
step for each update). online.mixing is the share of a batch that they have; below 0, as in the union.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.parts import control_runs, control_setup, offline_data, offline_runs
from rl_jax.control.offline import data as datasets
from rl_jax.control.transitions import Transitions
from rl_jax.rollout.envs.steps import collect, start
from rl_jax.training.step import TrainState

# Methods whose policy is a distribution to act by, and which read single steps only.
METHODS = ("iql", "xql", "dual", "cql")


class OnlineState(NamedTuple):
    """State of a run.

    Attributes:
      train: TrainState of the networks, with the target networks.
      loaded: offline_data.Loaded, with room for the online steps behind the recorded ones.
      filled: int32 [], rows of it that there are.
      worlds: of the environments that the policy acts in.
    """

    train: TrainState
    loaded: offline_data.Loaded
    filled: jax.Array
    worlds: Any


class Growing(NamedTuple):
    """What a fit reads.

    Attributes:
      data: OfflineData [N].
      filled: int32 [], rows of it that there are.
    """

    data: datasets.OfflineData
    filled: jax.Array


def make_sample(recorded: int, mixing: float):
    """Makes (Growing, key, size) -> OfflineData [size].

    Args:
      recorded: rows that are recorded, the first ones; those behind them are online.
      mixing: share of the online ones, once there are some; below 0: every row is as likely.
    """

    def sample(growing: Growing, key: jax.Array, size: int) -> datasets.OfflineData:
        old_key, new_key, coin_key = jax.random.split(key, 3)
        online = growing.filled - recorded
        share = jnp.where(online > 0, mixing, 0.0)
        if mixing < 0:
            share = online / growing.filled
        old = jax.random.randint(old_key, (size,), 0, recorded)
        new = recorded + jax.random.randint(new_key, (size,), 0, jnp.maximum(online, 1))
        return datasets.take(growing.data, jnp.where(jax.random.uniform(coin_key, (size,)) < share, new, old))

    return sample


def appended(data: datasets.OfflineData, steps: Transitions, filled: jax.Array) -> datasets.OfflineData:
    """The data [N] with steps [M] behind the `filled` rows, of a source of their own; returns are not known of them."""
    count = len(steps.rewards)
    first = datasets.take(data, jnp.zeros(count, jnp.int32))
    last = jnp.zeros(count, jnp.int32) + data.source[-1]
    own = first._replace(steps=steps, source=last, behaviour=jnp.full(count, -1, jnp.int32))
    return jax.tree.map(
        lambda old, new: jax.lax.dynamic_update_slice(old, new.astype(old.dtype), (filled, *(0,) * (new.ndim - 1))),
        data,
        own,
    )


def after(config) -> int:
    """Updates that read recorded steps only.

    Raises:
      ValueError: if the method cannot go on online, or the numbers do not divide.
    """
    fields, updates = config.online, control_setup.num_updates(config)
    if config.algorithm.fn not in METHODS or config.dataset.mixing or {"labels", "ope"} & set(config):
        raise ValueError(
            f"online: algorithm.fn must be one of {', '.join(METHODS)}, not {config.algorithm.fn!r}, with "
            "dataset.mixing=() and without groups labels and ope"
        )
    if config.log_every % fields.every or fields.every % fields.num_envs or not 0 < fields.after < 1:
        raise ValueError(
            f"online.after={fields.after} must be between 0 and 1, and online.every={fields.every} divide "
            f"log_every={config.log_every} and be a multiple of online.num_envs={fields.num_envs}"
        )
    alone = round(updates * fields.after / config.log_every) * config.log_every
    if not 0 < alone < updates:
        raise ValueError(
            f"online.after={fields.after} of {updates} updates are {alone} in steps of log_every={config.log_every}: "
            "some must be left on both sides"
        )
    return alone


def make_online_run(config, *, parts: int = 1, axis_name: str | None = None):
    """Makes the pure functions of one run, as control_runs.make_run.

    Args:
      config: of the program.
      parts: devices per run; 1.
      axis_name: None.

    Returns:
      (init, advance, params).
    """
    offline_runs.check_one_device(config, parts)
    settings, fields, alone = control_setup.settings_of(config), config.online, after(config)
    room = control_setup.num_updates(config) - alone
    env = control_setup.load_env(config, fields.num_envs, learning=True)
    control_runs.check_host(config, env)
    networks = offline_data.make_offline_networks(config, env)
    load = offline_data.make_loader(config, networks, config.dataset.discount)
    recorded = len(jax.eval_shape(load, jax.random.key(0)).data.time)
    eval_env = control_setup.load_env(config, config.eval.num_episodes)

    def parts_of(values: dict[str, jax.Array]):
        result = control_setup.with_values(settings, values)
        own = offline_runs.step_method(config, networks, result["algorithm"])
        sample = make_sample(recorded, fields.mixing)
        return own, *offline_runs.fit_of(config, result, own.recipe, sample=sample)

    def init(key: jax.Array, values: dict[str, jax.Array]) -> OnlineState:
        init_key, load_key, fit_key, env_key = jax.random.split(key, 4)
        own, begin, _ = parts_of(values)
        loaded = load(load_key)
        # One more source, and `room` rows that are not there yet.
        data = jax.tree.map(lambda x: jnp.pad(x, ((0, room), *((0, 0),) * (x.ndim - 1))), loaded.data)
        data = data._replace(source=data.source.at[recorded:].set(jnp.max(data.source) + 1))
        train = begin(own.init(init_key), fit_key)
        return OnlineState(train, loaded._replace(data=data), jnp.int32(recorded), start(env, env_key))

    def advance(state: OnlineState, values: dict[str, jax.Array], count: int):
        own, _, fit = parts_of(values)
        online = state.train.step >= alone

        def turn(state: OnlineState, _):
            key = jax.random.fold_in(jax.random.fold_in(state.train.rng, 2**31 - 5), state.train.step)
            policy = own.act(state.train.params, state.loaded)
            steps_each = fields.every // fields.num_envs
            worlds, steps, _ = collect(policy, own.distribution, env, state.worlds, key, num_steps=steps_each)
            actions = steps.actions if networks.num_actions else jnp.clip(steps.actions, -1.0, 1.0)
            rows = (steps.observations, actions, steps.rewards, steps.next_observations)
            flat = jax.tree.map(
                lambda x: x.reshape(-1, *x.shape[2:]), Transitions(*rows, steps.terminated, steps.truncated)
            )
            # Before its time nothing is read of what stands behind the filled rows.
            flat = datasets.normalize_steps(flat, state.loaded.moments)
            grown = appended(state.loaded.data, flat, state.filled)
            data = jax.tree.map(lambda new, old: jnp.where(online, new, old), grown, state.loaded.data)
            filled = state.filled + jnp.where(online, fields.every, 0)
            train, metrics = fit(state.train, Growing(data, filled), fields.every)
            return OnlineState(train, state.loaded._replace(data=data), filled, worlds), metrics

        state, metrics = jax.lax.scan(turn, state, None, count // fields.every)
        metrics = {name: jnp.mean(x) for name, x in metrics.items()}
        policy = own.act(state.train.params, state.loaded)
        metrics |= control_runs.judge(config, policy, own.distribution, eval_env, state.train)
        metrics |= offline_data.scores(metrics["eval/return"], state.loaded)
        metrics["online/steps"] = state.filled - recorded
        return state, jax.tree.map(jnp.float32, metrics)

    return init, advance, lambda state: state.train.params
