"""A recorded episode: the steps of the world as they were, to the end of the first one."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import envs
from rl_jax.models.agents.distributions import categorical, tanh_gaussian
from rl_jax.rollout.envs.episode import record_episode
from rl_jax.rollout.envs.steps import memoryless

KEY = jax.random.key(3)


def always(action: int, count: int = 2):
    """A policy that knows one action."""
    return lambda observations: jnp.broadcast_to(30.0 * jax.nn.one_hot(action, count), (len(observations), count))


def record(name, policy, distribution, max_steps, greedy=False, **fields):
    env = envs.load_vector(name, 1, **fields)
    choice = dict(max_steps=max_steps, greedy=greedy)
    found = jax.jit(lambda key: record_episode(memoryless(policy), distribution, env, key, **choice))
    return jax.device_get(found(KEY))


def test_a_walk_to_the_right_is_recorded_step_by_step():
    episode = record("probes/corridor", always(1), categorical(2), 9, length=4)
    assert (episode.length, episode.terminated, episode.truncated) == (4, True, False)
    np.testing.assert_array_equal(episode.observations[:4], np.eye(5)[:4])
    np.testing.assert_array_equal(episode.last, np.eye(5)[4])
    np.testing.assert_array_equal(episode.rewards[:4], [0, 0, 0, 1])
    np.testing.assert_array_equal(episode.actions, np.ones(9))


@pytest.mark.parametrize(("max_steps", "length", "truncated"), [(8, 5, True), (5, 5, True), (3, 3, False)])
def test_a_time_limit_is_told_from_the_end_of_the_recording(max_steps, length, truncated):
    episode = record("probes/endless", always(0, 1), categorical(1), max_steps, limit=5)
    assert (episode.length, episode.terminated, episode.truncated) == (length, False, truncated)


@pytest.mark.slow
def test_the_mode_is_taken_where_it_is_asked_for_and_actions_are_the_environments():
    space = envs.load("probes/aim").action_space
    distribution = tanh_gaussian(space.low, space.high)

    def policy(observations):
        return jnp.concatenate([0.3 * observations, jnp.zeros_like(observations)], axis=1)

    greedy, sampled = (record("probes/aim", policy, distribution, 2, greedy=greedy) for greedy in (True, False))
    np.testing.assert_allclose(greedy.actions[0], 2 * np.tanh(0.3 * greedy.observations[0]), rtol=1e-6)
    assert abs(sampled.actions[0] - greedy.actions[0]) > 1e-3
    missed = sampled.actions[0, 0] - sampled.observations[0, 0] / 2
    np.testing.assert_allclose(sampled.rewards[0], -(missed**2), rtol=1e-5)


@pytest.mark.parametrize("name", ["gymnax/CartPole-v1", "gymnasium/CartPole-v1"])
def test_cartpole_moves_as_gymnasiums(name):
    episode = record(name, always(0), categorical(2), 30)
    assert 5 < episode.length < 30 and episode.terminated
    states = np.concatenate([episode.observations[: episode.length], episode.last[None]])
    world = gymnasium.make("CartPole-v1").unwrapped
    world.reset()
    for before, after in zip(states[:-1], states[1:], strict=True):
        world.state = before.astype(np.float64)
        np.testing.assert_allclose(world.step(0)[0], after, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_policy_that_remembers_keeps_what_it_remembers():
    env = envs.load_vector("probes/endless", 1, limit=6)

    def every_third(worlds):
        return 30.0 * jax.nn.one_hot((worlds.memory % 3) // 2, 2), worlds.memory + 1

    memory = jnp.zeros(1, jnp.int32)
    episode = record_episode(every_third, categorical(2), env, KEY, max_steps=6, memory=memory)
    np.testing.assert_array_equal(episode.actions, [0, 0, 1, 0, 0, 1])


def test_several_worlds_are_no_episode():
    with pytest.raises(ValueError, match="num_envs=1, not 2"):
        record_episode(always(1), categorical(2), envs.load_vector("probes/corridor", 2), KEY, max_steps=3)
