"""Dynamics whose weights a hypernetwork makes: the loss against numpy, the step ahead, and a run of two tasks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs.control import offline as configs
from experiments.parts import hyper_runs
from rl_jax.control.offline import hypercrl, hypernetwork
from rl_jax.control.transitions import Transitions
from rl_jax.losses import continual as losses
from rl_jax.models.agents.hypernetwork import make_hyper_dynamics
from tests.control.offline.worlds import QUICK, jitted

NETS = make_hyper_dynamics((2,), 1, tasks=3, embedding=2, layers=(4,), hidden=(3,), activation="tanh")


def rows(count=5):
    rng = np.random.default_rng(0)
    states, actions, following = (rng.normal(size=(count, size)).astype(np.float32) for size in (2, 1, 2))
    none = np.zeros(count, bool)
    return Transitions(states, actions, np.zeros(count, np.float32), following, none, none)


def in_numpy(hyper, embedding, states, actions):
    """(weights [P], next states) of NETS: tanh layers (2, 4, P), then (3, 3, 2)."""

    def layers(vector, sizes, x):
        place = 0
        for i, (a, b) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
            kernel, bias = vector[place : place + a * b].reshape(a, b), vector[place + a * b : place + (a + 1) * b]
            x, place = x @ kernel + bias, place + (a + 1) * b
            x = np.tanh(x) if i < len(sizes) - 2 else x
        return x

    made = layers(hyper, (2, 4, NETS.size), embedding)
    return made, states + layers(made, (3, 3, 2), np.concatenate([states, actions], axis=1))


@functools.cache
def given():
    params = jax.device_get(jitted(NETS.init)(jax.random.key(0)))
    rng = np.random.default_rng(1)
    before = rng.normal(size=(3, NETS.size)).astype(np.float32)
    ahead = 0.1 * rng.normal(size=params["hyper"].shape).astype(np.float32)
    return params, before, ahead


@functools.cache
def measured():
    """(params, HyperBatch, beta) -> ((loss, metrics), gradients)."""

    def total(params, batch, beta):
        whole, metrics = hypercrl(NETS, beta=beta)(params, batch)
        return whole.value(), {name: x.value() for name, x in metrics.items()}

    return jitted(jax.value_and_grad(total, has_aux=True))


def test_the_loss_is_the_prediction_and_what_is_held_of_the_old_tasks():
    params, before, ahead = given()
    steps = rows()
    for task, beta in ((0, 0.5), (1, 0.5), (2, 0.5), (2, 0.0)):
        batch = hypernetwork.HyperBatch(steps, np.int32(task), before, ahead)
        (found, metrics), _ = measured()(params, batch, beta)
        _, predicted = in_numpy(params["hyper"], params["embeddings"][task], steps.observations, steps.actions)
        error = ((predicted - steps.next_observations) ** 2).mean()
        old = [in_numpy(params["hyper"] + ahead, params["embeddings"][j], *steps[:2])[0] for j in range(task)]
        held = np.mean([((made - before[j]) ** 2).sum() for j, made in enumerate(old)]) if old else 0.0
        np.testing.assert_allclose(found, error + beta * held, rtol=1e-4)
        np.testing.assert_allclose([metrics["loss/model"], metrics["loss/held"]], [error, held], rtol=1e-4)


def test_an_embedding_learns_from_its_own_task_only():
    params, before, ahead = given()
    _, grads = measured()(params, hypernetwork.HyperBatch(rows(), np.int32(1), before, ahead), 0.5)
    moved = np.abs(grads["embeddings"]).sum(axis=1) > 0
    assert moved.tolist() == [False, True, False]
    _, alone = measured()(params, hypernetwork.HyperBatch(rows(), np.int32(1), before, ahead), 0.0)
    np.testing.assert_allclose(grads["embeddings"], alone["embeddings"], rtol=1e-5)
    assert not np.allclose(grads["hyper"], alone["hyper"])


def test_held_outputs_by_hand():
    weights, before = np.float32([[1, 2], [3, 4], [9, 9]]), np.float32([[1, 0], [0, 0], [np.nan, 0]])
    value = jitted(jax.value_and_grad(losses.held_outputs))
    for seen, expected in (([0, 0, 0], 0.0), ([1, 0, 0], 4.0), ([1, 1, 0], (4.0 + 25.0) / 2)):
        found, grad = value(weights, before, np.array(seen, bool))
        assert found == expected and np.isfinite(grad).all()
        gaps = np.nan_to_num(weights - before)
        np.testing.assert_allclose(grad, 2 * gaps * np.array(seen)[:, None] / max(sum(seen), 1))


def test_what_a_task_had_before_is_data():
    weights, before, seen = np.float32([[1, 2]]), np.float32([[1, 0]]), np.array([True])
    assert not np.any(jax.grad(losses.held_outputs, argnums=1)(weights, before, seen))


def test_the_step_ahead_is_adams_on_the_tasks_own_loss():
    """One update at beta 1 by hand: the gradient of the second term is taken where Adam's step would lead."""
    params, before, _ = given()
    adam, steps, task = optax.adam(0.1), jax.tree.map(jnp.asarray, rows(1)), jnp.int32(1)
    loss = hypercrl(NETS, beta=1.0)
    begin, _, fit = hypernetwork.make_hyper_fit(NETS, loss, 0.1, batch_size=3, max_grad_norm=None)

    @jitted
    def both(params):
        state = fit(begin(params, jax.random.key(0)), steps, 1, task, before, 1)[0]
        drawn = jax.tree.map(lambda x: jnp.repeat(x, 3, axis=0), steps)  # the only row, three times
        alone = jax.grad(lambda p: jnp.mean(hypernetwork.prediction_errors(NETS, p, drawn, task)))(params)
        ahead = adam.update(alone, adam.init(params))[0]["hyper"]
        batch = hypernetwork.HyperBatch(drawn, task, before, ahead)
        grads = jax.grad(lambda p: loss(p, batch)[0].value())(params)
        return state.params, optax.apply_updates(params, adam.update(grads, adam.init(params))[0])

    found, expected = both(params)
    np.testing.assert_allclose(found["hyper"], expected["hyper"], atol=1e-5)
    np.testing.assert_array_equal(found["embeddings"][0], params["embeddings"][0])


def test_new_steps_stand_behind_those_there_are():
    steps = Transitions(*(jnp.zeros((2, 5, 1)) for _ in range(6)))
    fresh = Transitions(*(jnp.ones((2, 1)) for _ in range(6)))
    found, filled = hyper_runs.grown(steps, jnp.array([3, 1]), 1, fresh)
    assert found.actions[:, :, 0].tolist() == [[0] * 5, [0, 1, 1, 0, 0]] and filled.tolist() == [3, 3]


def test_returns_are_of_the_first_episode():
    rewards, done = jnp.array([[1.0, 2, 4], [1, 2, 4]]), jnp.array([[0, 1, 0], [0, 0, 0]], bool)
    assert hyper_runs.first_returns(rewards, done) == (3 + 7) / 2


def small(**fields):
    config = configs.get_config("hypercrl,smoke")
    config.network.hidden = (4,)
    config.hypernetwork.update(embedding=2, layers=(4,))
    config.continual["values"] = (0.0, 0.8)
    config.train.update(total_steps=2 * 4 * 8, batch_size=8)
    config.dataset.update(num_envs=2, num_steps=6, returns=(-30.0, 0.0))
    config.eval.update(num_episodes=2, max_steps=3)
    config.planner.horizon = 2
    with config.unlocked():
        config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return config


@pytest.mark.slow
def test_a_run_of_two_tasks():
    init, advance, params = hyper_runs.make_hyper_run(small())

    first = jax.jit(lambda key: init(key, {}), compiler_options=QUICK)(jax.random.key(0))
    step = jax.jit(lambda state: advance(state, {}, 4), compiler_options=QUICK)
    second, early = step(first)
    last, late = step(second)
    assert (early["task"], late["task"]) == (0, 1) and early["loss/held"] == 0 < late["loss/held"]
    assert [x.filled.tolist() for x in (first, second, last)] == [[12, 12], [18, 12], [18, 18]]  # 2 episodes of 3 steps
    assert np.abs(second.steps.observations[0, 12:18]).sum() > 0 and not second.steps.observations[1, 12:].any()
    new = last.steps.actions[1, 12:18]
    assert (np.abs(new) <= 1).all() and new.any()
    # What is held in the second task are the weights that it began with.
    nets = make_hyper_dynamics((4,), 2, tasks=2, embedding=2, layers=(4,), hidden=(4,))
    for begins, state in ((first, second), (second, last)):
        own = params(begins)
        np.testing.assert_allclose(state.before, nets.weights(own["hyper"], own["embeddings"]), atol=1e-5)
    np.testing.assert_array_equal(params(last)["embeddings"][0], params(second)["embeddings"][0])
    np.testing.assert_allclose(late["model/forgetting"], late["model/task_0"] - early["model/task_0"], atol=1e-5)


def test_refusals():
    with pytest.raises(ValueError, match="no planner knows its reward; it does of probes/pointmass"):
        other = dict(continual__field="at_reset", continual__values=("repeat", "zeros"))
        hyper_runs.make_hyper_run(small(env__name="probes/aim", **other))
    with pytest.raises(ValueError, match="a sequence has two tasks or more"):
        hyper_runs.make_hyper_run(small(continual__values=(0.5,)))
