"""models/agents/relu_programs.py: the integer program's action is that of enumeration, and is solved once per state."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.envs.worlds import restless
from rl_jax.models.agents import relu_programs as programs
from rl_jax.models.agents import value_networks


def network(seed, arms, hidden, members=1):
    """(critic, its params as float64 lists of layers, its params) with weights of about 1."""
    unit = np.ones(arms, np.float32)
    critic = value_networks.make_q_function((arms,), 0 * unit, unit, 1, hidden=hidden, members=members)
    params = jax.tree.map(lambda x: 2.0 * x, critic.init(jax.random.key(seed)))
    return critic, params


def value(params, member, observation, action):
    """Q(s, a) of one member, by hand: it reads (s, 2 a - 1)."""
    x = np.concatenate([observation, 2.0 * action - 1.0])
    for name in sorted(name for name in params if name != "head"):
        x = np.maximum(x @ params[name]["kernel"][member] + params[name]["bias"][member], 0.0)
    return float((x @ params["head"]["kernel"][member] + params["head"]["bias"][member])[0])


@pytest.mark.parametrize(
    ("arms", "budget", "hidden", "members"), [(4, 1, (6,), 1), (6, 2, (6,), 2), (6, 3, (4, 3), 1), (10, 4, (6,), 1)]
)
def test_the_program_finds_what_enumeration_finds(arms, budget, hidden, members):
    vectors = restless.action_vectors(arms, budget)
    for seed in range(2):
        critic, params = network(seed, arms, hidden, members)
        states = np.random.default_rng(seed).integers(0, 2, (3, arms)).astype(np.float32)
        layers = programs.layers_of(params)
        host = jax.tree.map(np.asarray, params)
        enumerated = np.asarray(programs.make_enumeration(critic.apply, vectors)(params, jnp.asarray(states)))
        for state, other in zip(states, enumerated, strict=True):
            found = programs.best_action(layers, state, programs.exactly(arms, budget))
            means = [np.mean([value(host, k, state, a) for k in range(members)]) for a in vectors]
            np.testing.assert_array_equal(found, vectors[np.argmax(means)])
            np.testing.assert_array_equal(found, other)


def test_other_constraints_and_their_bounds():
    """Costs within a purse, and not both of the first two arms; bounds of the first layer hold."""
    costs = np.array([3.0, 2.0, 2.0, 1.0, 1.0])
    feasible = programs.Feasible(
        np.stack([costs, [1.0, 1.0, 0.0, 0.0, 0.0]]), np.array([-np.inf, -np.inf]), np.array([4.0, 1.0])
    )
    allowed = [
        np.array(a) for a in itertools.product((0.0, 1.0), repeat=5) if costs @ np.array(a) <= 4.0 and a[0] + a[1] <= 1
    ]
    for seed in range(3):
        params = network(seed, 5, (7,))[1]
        state, host = np.random.default_rng(seed).uniform(size=5).astype(np.float32), jax.tree.map(np.asarray, params)
        layers = programs.layers_of(params)
        best = allowed[int(np.argmax([value(host, 0, state, a) for a in allowed]))]
        np.testing.assert_array_equal(programs.best_action(layers, state, feasible), best)
        reached = 2.0 * np.array(allowed) @ layers[0][0][0][5:]
        [(low, high)] = programs.first_bounds(layers, feasible)
        assert (low <= reached.min(0) + 1e-9).all() and (high >= reached.max(0) - 1e-9).all()
    budget = programs.exactly(5, 2)
    loose = budget._replace(matrix=np.concatenate([budget.matrix, budget.matrix]), low=np.full(2, 2.0), high=[2.0, 9.0])
    for closed, solved in zip(*(programs.first_bounds(layers, f)[0] for f in (budget, loose)), strict=True):
        np.testing.assert_allclose(closed, solved, atol=1e-6)  # a sum of the largest, and linear programs


def test_within_a_compiled_program_each_state_of_a_network_is_solved_once(monkeypatch):
    solved, best_action = [], programs.best_action
    monkeypatch.setattr(programs, "best_action", lambda *args: solved.append(1) or best_action(*args))
    params = network(0, 4, (6,))[1]
    states = jnp.asarray([[0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 1.0]])
    search = programs.make_search(programs.exactly(4, 2), kept=2)
    both = jax.jit(lambda p, s: jax.lax.map(lambda own: search(p, own), jnp.stack([s, s])))
    found = np.asarray(both(params, states))
    assert found.shape == (2, 3, 4) and len(solved) == 2 and (found.sum(-1) == 2).all()
    np.testing.assert_array_equal(found[0, 0], found[1, 2])
    for other in (1.0, 2.0, 3.0):  # the first network is forgotten, and its answers with it
        search(jax.tree.map(lambda x, other=other: x + other, params), states[:1])
    assert len(solved) == 5
    np.testing.assert_array_equal(np.asarray(both(params, states)), found)
    assert len(solved) == 7


def test_what_is_refused():
    params = network(0, 4, (6,))[1]
    layers, state = programs.layers_of(params), np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="reads 8 numbers and has 1 outputs, not 9 and 1"):
        programs.best_action(layers, state, programs.exactly(5, 2))
    with pytest.raises(RuntimeError, match="no action is feasible"):
        programs.best_action(layers, state, programs.exactly(4, 5))
    # Half an arm: a relaxation has an answer, whole numbers have none.
    half = programs.Feasible(np.ones((1, 4)), np.array([0.4]), np.array([0.6]))
    with pytest.raises(RuntimeError, match="the integer program has no answer"):
        programs.best_action(layers, state, half)
