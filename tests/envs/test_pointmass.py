"""envs/worlds/pointmass.py and scripted.py: the equation, delay and wind, and what the scripted behaviours do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import envs
from rl_jax.envs.worlds import pointmass, scripted


def run(env, actions, key=0):
    """Observations and rewards of these actions from a fixed start."""
    state, first = env.reset(jax.random.key(3))
    rows = []
    for i, action in enumerate(actions):
        state, now = env.step(jax.random.key(key + i), state, jnp.asarray(action))
        rows.append(now)
    return np.asarray(first), rows


def test_the_equation_and_a_delay():
    actions = [(1.0, -0.5), (0.0, 0.0), (0.2, 2.0)]
    first, rows = run(pointmass.environment(), actions)
    place, velocity = first[:2].astype(np.float64), np.zeros(2)
    for action, now in zip(actions, rows, strict=True):
        velocity = 0.5 * velocity + 0.2 * np.clip(action, -1, 1)
        place = np.clip(place + velocity, -1.5, 1.5)
        np.testing.assert_allclose(now.observation, [*place, *velocity], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(now.reward, -np.hypot(*place), rtol=1e-5)
        assert not now.terminated and not now.truncated
    late_first, late = run(pointmass.environment(delay=1), [*actions, (0.0, 0.0)])
    np.testing.assert_allclose(late_first, [*first, 0.0, 0.0])
    np.testing.assert_allclose(late[0].observation, [*first, 1.0, -0.5])
    for now, before in zip(late[1:], rows, strict=True):
        np.testing.assert_allclose(now.observation[:4], before.observation, rtol=1e-5, atol=1e-6)


def test_wind_moves_the_point_and_is_not_shown():
    calm, windy = (run(pointmass.environment(wind=wind), [(0.0, 0.0)] * 3)[1][-1] for wind in (0.0, 0.1))
    assert windy.observation.shape == calm.observation.shape
    assert np.abs(windy.observation - calm.observation).max() > 0.01
    for fields, said in ((dict(inertia=1.0), "inertia=1.0 must be"), (dict(delay=-1), "delay=-1 and wind=0.0")):
        with pytest.raises(ValueError, match=said):
            envs.load("probes/pointmass", **fields)


def test_behaviours():
    """The expert is the controller, the reversed one its opposite, a random one neither; of each environment."""
    names = ("expert", "reversed", "random")
    observations = jnp.broadcast_to(jnp.array([0.1, -0.02, 0.0, 0.0]), (3, 4))
    space = envs.load("probes/pointmass").action_space
    act = scripted.actor("probes/pointmass", space, scripted.behaviour(names))
    expert, opposite, random = np.asarray(act(observations, jax.random.key(0)))
    np.testing.assert_allclose(expert, [-0.5, 0.1], rtol=1e-5)
    np.testing.assert_allclose(opposite, -expert)
    assert np.abs(random - expert).max() > 0.05 and np.abs(random).max() <= 1.0
    corner = jax.nn.one_hot(jnp.array([0, 12, 14]), 16)
    assert scripted.gridworld(corner).tolist() == [1, 3, 3]
    with pytest.raises(ValueError, match="behaviour 'best' is none of expert"):
        scripted.behaviour(("best",))
    with pytest.raises(ValueError, match="'probes/drive' has no scripted behaviour"):
        scripted.controller("probes/drive")
