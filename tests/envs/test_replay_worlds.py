"""envs/worlds/laser.py, restless.py, docking.py: their optima, and their steps against loops."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.envs.worlds import docking, laser, restless


def test_the_shortest_pulse_is_worth_one_and_every_other_less():
    assert laser.peak(jnp.zeros(3)) == pytest.approx(1.0, rel=2e-3)
    rng = np.random.default_rng(0)
    for c in rng.uniform(-1, 1, size=(4, 3)) * laser.RANGE:
        ours = float(laser.peak(jnp.asarray(c, jnp.float32)))
        field = np.exp(-0.5 * laser.FREQUENCIES**2 + 1j * (laser.ORDERS * c[:, None]).sum(0))
        padded = np.fft.fft(field, 4096)  # a transform of its own, on a finer grid of times
        largest = np.max(np.abs(padded) ** 2) / np.abs(np.exp(-0.5 * laser.FREQUENCIES**2).sum()) ** 2
        assert ours == pytest.approx(largest, rel=0.03) and ours < 0.95


def test_arms_pay_by_the_table_and_the_best_policy_waits_for_pairs():
    vectors = restless.action_vectors()
    assert vectors.shape == (15, 6) and (vectors.sum(1) == 2).all() and len(np.unique(vectors, axis=0)) == 15
    full = np.float32([1, 1, 1, 0, 0, 0])
    for action, chosen in enumerate(itertools.combinations(range(6), 2)):
        expected = 0.2 * sum(full[i] for i in chosen) + (1.0 if chosen == (0, 1) else 0.0)
        assert restless.reward_of(full, vectors[action], 0.2, 1.0) == pytest.approx(expected)
    step = jax.jit(restless.environment(refill=1.0).step)
    reset, _ = restless.environment().reset(jax.random.key(0))
    state, now = step(jax.random.key(1), reset._replace(state=jnp.asarray(full)), jnp.int32(0))
    np.testing.assert_array_equal(now.observation, [0, 0, 1, 1, 1, 1])  # pulled arms are empty, all others filled
    assert now.reward == pytest.approx(1.4)
    values = {name: restless.values_of(name, discount=0.9)[0].mean() for name in ("best", "myopic", "random")}
    assert values["best"] > 1.2 * values["myopic"] and values["myopic"] > 1.2 * values["random"]


def test_the_controller_ends_beside_the_origin_and_without_its_bias_at_it():
    env = docking.environment()

    def last(bias):
        def step(state, _):
            action = docking.biased_pd(state.state[None], bias=bias)[0]
            return env.step(jax.random.key(0), state, action)[0], None

        return jax.lax.scan(step, env.reset(jax.random.key(0))[0], None, 60)[0].state[:2]

    np.testing.assert_allclose(jax.jit(last)(0.3), [0.3, 0.3], atol=0.02)
    np.testing.assert_allclose(jax.jit(last)(0.0), [0.0, 0.0], atol=0.02)
