"""Offline methods on histories (arXiv 2310.20663): windows by loops, the base as a special case, acting, the metric."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.parts import control_setup, offline_data, offline_runs
from rl_jax.control.offline import data as datasets
from rl_jax.control.offline import history, in_sample, sequence
from rl_jax.control.offline.recipe import Batch
from rl_jax.control.transitions import Transitions
from rl_jax.losses import bisimulation
from rl_jax.models.agents.decision_transformer import empty, extended
from rl_jax.models.agents.history import make_history_networks
from tests.control.offline.worlds import QUICK, jitted, small

CONTEXT, CODE = 3, 4


@functools.cache
def model():
    return make_history_networks((2,), code=CODE, context=CONTEXT, kind=dict(num_actions=2), hidden=(8,))


@functools.cache
def recorded():
    """Two episodes of 4 steps; the first terminates, the second is cut off."""
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(8, 2)).astype(np.float32)
    after = np.where(np.arange(8)[:, None] % 4 == 3, seen + 1.0, np.roll(seen, -1, axis=0))
    ended, cut = np.arange(8) == 3, np.arange(8) == 7
    rewards = rng.normal(size=8).astype(np.float32)
    return Transitions(seen, np.arange(8) % 2, rewards, np.float32(after), ended, cut)


@functools.cache
def batch():
    def read(rows):
        data = datasets.make_data(rows, discount=0.9)
        return sequence.Windows(*datasets.windows(data, jnp.arange(8), CONTEXT))

    windows = jitted(read)(jax.tree.map(jnp.asarray, recorded()))
    params = jitted(model().init)(jax.random.key(0))
    return params, Batch(windows, {"q": params["q"] + 0.1}, jax.random.key(1))


@pytest.mark.slow
def test_the_histories_before_and_after_a_step_by_loops():
    """They end with the step's observation and with the next one, and never reach over an episode's start."""
    before, after = jitted(lambda w: history.before_and_after(w, model()))(batch()[1].data)
    rows = recorded()
    for t in range(8):
        start = 4 * (t // 4)
        past = [*range(max(start, t - CONTEXT + 1), t + 1)]
        seen = rows.observations[past]
        np.testing.assert_array_equal(before.observations[t][before.mask[t]], seen)
        longer = np.concatenate([rows.observations[start : t + 1], rows.next_observations[t : t + 1]])[-CONTEXT:]
        np.testing.assert_array_equal(after.observations[t][after.mask[t]], longer)
        taken = np.eye(2)[rows.actions[max(start, t - CONTEXT + 2) : t + 1]]
        np.testing.assert_array_equal(after.actions[t][after.mask[t]][:-1], taken)


@pytest.mark.slow
def test_acting_step_by_step_is_the_code_of_the_window():
    """The last step's own action is not read, nor what is masked."""
    params, rows = batch()[0], recorded()
    before, _ = history.before_and_after(batch()[1].data, model())
    encode = jitted(model().encode)
    codes, memory = encode(params, before), empty(model(), 1, (2,))
    memory = memory._replace(mask=~memory.mask, observations=memory.observations + 7.0)  # of an earlier episode
    for t in range(4):
        memory = extended(memory, jnp.zeros(1), jnp.asarray(rows.observations[t : t + 1]), jnp.full(1, t))
        np.testing.assert_allclose(encode(params, memory)[0], codes[t], atol=1e-6)
        memory = memory._replace(actions=memory.actions.at[:, -1].set(np.eye(2)[rows.actions[t]]))


@pytest.mark.slow
def test_the_loss_is_the_bases_on_codes_and_two_terms():
    params, given = batch()
    base = functools.partial(in_sample.iql, discount=0.9)

    def parts(params):
        before, after = history.before_and_after(given.data, model())
        z, ahead = model().encode(params, before), model().encode(params, after)
        last = jax.tree.map(lambda x: x[:, -1], given.data.data)
        steps = last.steps._replace(observations=z, next_observations=ahead)
        plain = base(model().readers).loss(params, given._replace(data=last._replace(steps=steps)))[0].value()
        rewards, means, stds = model().predict(params, z, steps.actions)
        normal = jnp.sum(0.5 * jnp.square((ahead - means) / stds) + jnp.log(stds), axis=1)
        fitted = jnp.mean(jnp.square(rewards - steps.rewards) + normal)
        order = jax.random.permutation(jax.random.fold_in(given.key, 1), 8)
        apart = bisimulation.bisimulation(z, rewards, means, stds, order, discount=0.5).mean()
        return plain, fitted, apart

    def loss(params, coefs):
        made = history.histories(model(), base=base, coef=coefs[0], model_coef=coefs[1], discount=0.5)
        return made.loss(params, given)[0].value()

    sides = jitted(lambda p, c: (parts(p), loss(p, c), jax.grad(loss)(p, c)))
    (plain, fitted, apart), found, slopes = sides(params, jnp.array([0.3, 0.7]))
    np.testing.assert_allclose(found, plain + 0.7 * fitted + 0.3 * apart, rtol=1e-5)
    *_, alone = sides(params, jnp.zeros(2))
    np.testing.assert_allclose(alone["model"], 0.0)  # the base on histories
    _, _, model_only = sides(params, jnp.array([0.0, 0.7]))
    np.testing.assert_allclose(model_only["history"], alone["history"], atol=1e-6)  # the model does not move the codes
    assert np.abs(slopes["history"] - alone["history"]).max() > 1e-3  # J does
    np.testing.assert_allclose(slopes["model"], model_only["model"], atol=1e-6)  # and does not move the model


@pytest.mark.slow
def test_codes_become_as_far_apart_as_what_follows_them():
    """One behaviour without noise: sum_k gamma^k |r_{i+k} - r_{j+k}| of the recorded rewards is the metric.

    With the loss the codes' distances have its size, 1.3 times; IQL alone makes them 5 times as large.
    """
    config = small("hidden,histories", num_seeds=1, algorithm__coef=10.0)
    config.dataset.update(behaviours=("expert",), shares=(1.0,), num_envs=10)
    config.train.update(batch_size=64)
    config.train.optimizer.learning_rate = 3e-3
    config.eval.update(num_episodes=2)
    init, advance, _ = offline_runs.make_offline_run(config)
    kind = offline_data.action_kind(control_setup.load_env(config, 1))
    sizes = config.history.to_dict() | config.network.to_dict()
    nets = make_history_networks((2,), kind=kind, **sizes)

    def run(args):
        state, _ = advance(init(*args), args[1], 200)
        data = state.loaded.data
        windows = sequence.Windows(*datasets.windows(data, jnp.arange(len(data.time)), config.history.context))
        before, _ = history.before_and_after(windows, nets)
        return nets.encode(state.train.params, before), data

    keys, values = control_setup.runs_of(config)
    codes, data = jax.jit(lambda *args: jax.lax.map(run, args), compiler_options=QUICK)(keys, values)
    slopes = []
    for own, rewards, time in zip(*map(np.asarray, (codes, data.steps.rewards, data.time)), strict=True):
        rows = np.flatnonzero(time <= 20 - 8)[:-8]
        rows = rows[time[rows + 7] == time[rows] + 7][::2]
        ahead = rewards[rows[:, None] + np.arange(8)]
        metric = np.abs(ahead[:, None] - ahead[None]) @ 0.9 ** np.arange(8)
        gaps = np.linalg.norm(own[rows][:, None] - own[rows][None], axis=-1)
        slopes.append(np.sum(gaps * metric) / np.sum(metric**2))
    assert 0.8 < slopes[0] < 1.7, slopes
