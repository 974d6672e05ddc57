"""models/agents/mixers.py: monotone, by gradients; the agents' best is the team's, by enumeration; VDN as a limit."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from rl_jax.models.agents import exploration, mixers

AGENTS, STATE, ROWS = 3, 4, 16


@pytest.fixture(scope="module")
def made():
    """(mixer, params with weights of all sizes, values, states)."""
    mixer = mixers.qmix(AGENTS, STATE, width=5, hidden=6)
    keys = jax.random.split(jax.random.key(0), 4)
    flat, unravel = ravel_pytree(mixer.init(keys[0]))
    params = unravel(flat + jax.random.normal(keys[1], flat.shape))
    return mixer, params, 3 * jax.random.normal(keys[2], (ROWS, AGENTS)), jax.random.normal(keys[3], (ROWS, STATE))


def reference(params, values, states):
    """PyMARL's QMixer with two hypernetwork layers, one row at a time, in numpy."""

    def net(layers, x):
        for i, layer in enumerate(layers):
            x = x @ np.asarray(layer["kernel"], np.float64) + np.asarray(layer["bias"], np.float64)
            x = np.maximum(x, 0) if i < len(layers) - 1 else x
        return x

    out = []
    for q, s in zip(np.asarray(values, np.float64), np.asarray(states, np.float64), strict=True):
        first = np.abs(net(params["weights_1"], s)).reshape(AGENTS, -1)
        mixed = q @ first + net(params["bias_1"], s)
        hidden = np.where(mixed > 0, mixed, np.expm1(np.minimum(mixed, 0)))
        out.append(hidden @ np.abs(net(params["weights_2"], s)) + net(params["value"], s)[0])
    return np.array(out)


def test_the_mixture_is_pymarls(made):
    mixer, params, values, states = made
    np.testing.assert_allclose(mixer.apply(params, values, states), reference(params, values, states), rtol=2e-5)


def test_the_mixture_rises_with_every_agents_value(made):
    """And falls with none, although weights before |.| have both signs and the state's part may fall."""
    mixer, params, values, states = made
    slopes = jax.grad(lambda q: jnp.sum(mixer.apply(params, q, states)))(values)
    assert slopes.shape == (ROWS, AGENTS) and (slopes > 0).all()
    first, second = jax.device_get(params["weights_1"])
    raw = np.maximum(np.asarray(states) @ first["kernel"] + first["bias"], 0) @ second["kernel"] + second["bias"]
    assert (raw > 0).any() and (raw < 0).any()
    by_state = jax.grad(lambda s: jnp.sum(mixer.apply(params, values, s)))(states)
    assert (by_state > 0).any() and (by_state < 0).any()


def test_the_agents_best_actions_are_the_teams(made):
    """Individual-global-max by enumeration of all 27 joint actions, in every state."""
    mixer, params, _, states = made
    table = jax.random.normal(jax.random.key(9), (ROWS, AGENTS, 3))
    joint = list(itertools.product(range(3), repeat=AGENTS))
    totals = [mixer.apply(params, table[:, np.arange(AGENTS), list(u)], states) for u in joint]
    best = np.array(joint)[np.argmax(np.stack(totals), axis=0)]
    np.testing.assert_array_equal(best, np.argmax(table, axis=-1))


def test_vdn_is_a_limit_of_qmix(made):
    """Weights 1 and 1 / width, no matter the state, and a bias that keeps elu where it is the identity."""
    mixer, params, values, states = made
    params = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), params)
    width, far = 5, 100.0
    params["weights_1"][-1]["bias"] += 1.0
    params["weights_2"][-1]["bias"] += 1.0 / width
    params["bias_1"][-1]["bias"] += far
    params["value"][-1]["bias"] -= far
    sums = mixers.vdn(AGENTS, STATE)
    np.testing.assert_allclose(mixer.apply(params, values, states), values.sum(axis=1), atol=1e-4)
    np.testing.assert_allclose(sums.apply(sums.init(jax.random.key(0)), values, states), values.sum(axis=1), rtol=1e-6)


def test_each_agent_throws_its_own_coin():
    law = exploration.each_greedy(2, 3)
    values = jnp.broadcast_to(jnp.array([0.0, 2.0, 1.0, 5.0, 0.0, 0.0]), (4000, 6))
    noise = law.noise(jax.random.key(0), (4000,))
    for share in (0.0, 0.6):
        outputs = jnp.concatenate([values, jnp.full((4000, 1), share)], axis=1)
        chosen = np.asarray(law.sample(outputs, noise))
        greedy = chosen == [1, 0]
        assert chosen.shape == (4000, 2) and (np.asarray(law.mode(outputs)) == [1, 0]).all()
        np.testing.assert_allclose(greedy.mean(axis=0), 1 - share * 2 / 3, atol=0.03)
        # Independent: both greedy as often as the product says.
        np.testing.assert_allclose(greedy.all(axis=1).mean(), (1 - share * 2 / 3) ** 2, atol=0.03)
