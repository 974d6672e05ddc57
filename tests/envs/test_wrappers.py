"""Stacked frames and parts of observations, against numpy on the same worlds without them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import envs
from rl_jax.envs import objectives
from rl_jax.envs.learned import learned_reward
from rl_jax.envs.worlds import probes
from tests.envs.test_protocol import walk


@pytest.mark.parametrize("at_reset", ["repeat", "zeros"])
def test_a_stack_is_the_last_frames_of_the_episode(at_reset):
    env, k = envs.vectorize(probes.recall(delay=4), 5), 3
    first, shown, step = walk(env, jnp.zeros(12, jnp.int32))
    stacked = envs.frame_stack(env, k, at_reset=at_reset)
    assert stacked.observation_space.shape == (k,) and stacked.observation_space.low[0] == -1.0
    found_first, found, found_step = walk(stacked, jnp.zeros(12, jnp.int32))
    for world in range(5):

        def begin(observation):
            return [observation if at_reset == "repeat" else 0 * observation] * (k - 1) + [observation]

        frames = begin(first[world])
        np.testing.assert_array_equal(found_first[world], np.concatenate(frames))
        for t in range(12):
            frames = frames[1:] + [step.observation[t, world]]
            np.testing.assert_array_equal(found_step.observation[t, world], np.concatenate(frames))
            if step.terminated[t, world]:
                frames = begin(shown[t, world])
            np.testing.assert_array_equal(found[t, world], np.concatenate(frames))
    assert step.terminated.any() and shown.any()
    np.testing.assert_array_equal(found_step.reward, step.reward)


def test_frames_are_stacked_on_the_last_axis():
    env = envs.load_vector("gymnax/Breakout-MinAtar", 2)
    stacked = envs.frame_stack(env, 4)
    assert stacked.observation_space.shape == (10, 10, 16)
    observation = jax.eval_shape(stacked.reset, jax.random.key(0))[1]
    assert observation.shape == (2, 10, 10, 16)
    assert envs.frame_stack(env, 1) is env


def test_worlds_of_the_host_are_wrapped_as_well():
    env = envs.frame_stack(envs.select_features(envs.load_vector("gymnasium/CartPole-v1", 2), (0, 2)), 2)
    assert not env.pure and env.observation_space.shape == (4,)

    @jax.jit
    def whole(key):
        state, first = env.reset(key)
        step = env.step(state, jnp.ones(2, jnp.int32), env.ahead(key, 1))
        return first, step[1]

    first, second = jax.device_get(whole(jax.random.key(0)))
    np.testing.assert_array_equal(first[:, :2], first[:, 2:])
    np.testing.assert_array_equal(second[:, :2], first[:, 2:])
    assert (second[:, 2:] != first[:, 2:]).all()


def test_a_part_of_an_observation():
    env = envs.load_vector("gymnax/CartPole-v1", 3)
    whole = walk(env, jnp.ones(15, jnp.int32))
    part = walk(envs.select_features(env, (0, 2)), jnp.ones(15, jnp.int32))
    np.testing.assert_array_equal(part[0], whole[0][:, [0, 2]])
    np.testing.assert_array_equal(part[1], whole[1][..., [0, 2]])
    np.testing.assert_array_equal(part[2].observation, whole[2].observation[..., [0, 2]])
    assert whole[2].terminated.any()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: envs.frame_stack(env, 2),
        lambda env: envs.select_features(env, (0, 1)),
        objectives.conditioned,
        lambda env: learned_reward(env, lambda observation, action: observation[:, 0]),
    ],
)
def test_what_a_world_tells_is_told_of_its_own_state(wrap):
    plain = envs.load_vector("objectives/treasure", 3)
    told = lambda state: {"states": jax.tree.map(lambda x: 2 * x, state)}  # noqa: E731
    wrapped, state = wrap(plain._replace(told=told)), plain.reset(jax.random.key(0))[0]
    jax.tree.map(np.testing.assert_array_equal, wrapped.told(wrapped.reset(jax.random.key(0))[0]), told(state))
    assert wrap(plain).told is None


def test_refusals():
    env = envs.vectorize(probes.matching(), 2)
    with pytest.raises(ValueError, match="k=0 must be at least 1"):
        envs.frame_stack(env, 0)
    with pytest.raises(ValueError, match="at_reset='zero' one of repeat, zeros"):
        envs.frame_stack(env, 2, at_reset="zero")
    with pytest.raises(ValueError, match="not indices of an observation of size 1"):
        envs.select_features(env, (0, 1))
