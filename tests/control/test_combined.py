"""control/replay_methods/combined.py: SEQUOIA's target by hand, the same by either search, feasible random actions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.control import replay_methods
from rl_jax.control.replay import ReplayBatch
from rl_jax.control.transitions import Transitions
from rl_jax.envs.worlds import restless
from rl_jax.losses import value_heads
from rl_jax.models.agents import relu_programs, value_networks

ARMS, BUDGET = 4, 2
UNIT = np.ones(ARMS, np.float32)
VECTORS = restless.action_vectors(ARMS, BUDGET)


def parts():
    critic = value_networks.make_q_function((ARMS,), 0 * UNIT, UNIT, 1, hidden=(6,))
    searches = {
        "program": relu_programs.make_search(relu_programs.exactly(ARMS, BUDGET)),
        "enumeration": relu_programs.make_enumeration(critic.apply, VECTORS),
    }
    return replay_methods.ReplayParts(critic, None, value_heads.scalar(), searches=searches)


def test_the_target_is_the_best_feasible_value_of_the_slow_copy_by_either_search():
    rng, made = np.random.default_rng(0), parts()
    states, following = (jnp.asarray(rng.integers(0, 2, (5, ARMS)), jnp.float32) for _ in range(2))
    taken, rewards = jnp.asarray(VECTORS[rng.integers(0, 6, 5)]), jnp.asarray(rng.normal(size=5), jnp.float32)
    discounts, none = jnp.float32([0.9, 0.0, 0.9, 0.9, 0.9]), jnp.zeros(5, bool)
    steps = Transitions(states, taken, rewards, following, none, none)
    batch = ReplayBatch(**{name: None for name in ReplayBatch._fields} | dict(steps=steps, discounts=discounts))
    params, slow = ({"critic": made.critic.init(jax.random.key(seed))} for seed in (1, 2))
    values = made.critic.apply
    each = np.stack([values(slow["critic"], following, jnp.tile(jnp.asarray(v), (5, 1)))[0, :, 0] for v in VECTORS])
    target = rewards + discounts * each.max(0)
    expected = 0.5 * (values(params["critic"], states, taken)[0, :, 0] - target) ** 2
    gradients = []
    for search in ("program", "enumeration"):
        method = replay_methods.sequoia(made, search=search)

        def total(own, method=method):
            return method.critic_loss({"critic": own}, slow, batch, jax.random.key(0))[0]

        np.testing.assert_allclose(total(params["critic"]), expected, rtol=1e-4, atol=1e-6)
        gradients.append(jax.grad(lambda own: jnp.sum(total(own)))(params["critic"]))  # noqa: B023
        acted = np.asarray(method.policy(params, states))
        own = np.stack([values(params["critic"], states, jnp.tile(jnp.asarray(v), (5, 1)))[0, :, 0] for v in VECTORS])
        np.testing.assert_array_equal(acted, np.tile(VECTORS[own.argmax(0)], 2))
    jax.tree.map(np.testing.assert_array_equal, *gradients)
    with pytest.raises(ValueError, match="search='guess' is none of program, enumeration"):
        replay_methods.sequoia(made, search="guess")


def test_the_largest_numbers_are_pulled_and_the_world_is_that_of_the_listed_actions():
    np.testing.assert_array_equal(restless.pulled_by(jnp.float32([0.2, 0.9, 0.9, 0.1]), 2), [0, 1, 1, 0])
    np.testing.assert_array_equal(restless.pulled_by(jnp.zeros((2, 3)), 1), [[1, 0, 0]] * 2)
    listed, vectors = restless.environment(), restless.vector_environment()
    steps = jax.jit(listed.step), jax.jit(vectors.step)
    state, other = listed.reset(jax.random.key(0))[0], vectors.reset(jax.random.key(0))[0]
    for time in range(6):
        key, action = jax.random.key(time), jnp.int32(3 * time % 15)
        state, one = steps[0](key, state, action)
        other, two = steps[1](key, other, jnp.asarray(restless.action_vectors())[action])
        jax.tree.map(np.testing.assert_array_equal, one, two)
    for fields in (dict(arms=5), dict(budget=0), dict(budget=7)):
        with pytest.raises(ValueError, match="restless arms"):
            restless.vector_environment(**fields)
