"""envs.starts: what a world starts again with, how many starts are drawn, and that an evaluation needs none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import envs
from rl_jax.envs.starts import vectorize_keeping
from rl_jax.models.agents.distributions import categorical
from rl_jax.rollout.envs import steps


def counting(length):
    """Episodes of `length` steps; all observations and rewards are the number that was drawn at the start."""

    def reset(key):
        number = jax.random.uniform(key, (1,))
        return (number, jnp.int32(0)), number

    def step(key, state, action):
        number, time = state
        late = time + 1 >= length
        return (number, time + 1), envs.Step(number, number[0], late, jnp.zeros_like(late))

    space = envs.Box(np.zeros(1, np.float32), np.ones(1, np.float32))
    return envs.Environment(reset, step, space, envs.Discrete(2))


def numbers(env, num_steps):
    """(the first numbers [B], those acted on next [T, B], Steps) of a walk, and the drawn rows."""

    def walk(key):
        start_key, key = jax.random.split(key)
        state, first = env.reset(start_key)
        drawn = env.ahead(key, num_steps)

        def step(state, drawn):
            state, observation, now = env.step(state, jnp.zeros(env.num_envs, jnp.int32), drawn)
            return state, (observation, now)

        return first, jax.lax.scan(step, state, drawn)[1], drawn

    first, (observation, now), drawn = jax.device_get(jax.jit(walk)(jax.random.key(0)))
    return first[:, 0], observation[..., 0], now, drawn


def test_without_fresh_starts_each_world_comes_back_to_its_own():
    first, observation, now, drawn = numbers(vectorize_keeping(counting(3), 4, fresh=0), 9)
    np.testing.assert_array_equal(now.terminated, np.broadcast_to((np.arange(9) % 3 == 2)[:, None], (9, 4)))
    np.testing.assert_array_equal(now.observation[:3, :, 0], np.broadcast_to(first, (3, 4)))  # its own last one
    np.testing.assert_array_equal(observation[2:], np.broadcast_to(observation[2], (7, 4)))
    assert len(np.unique([*first, *observation[2]])) == 8 and drawn[1] == ()


def test_all_fresh_is_a_start_of_its_own_for_each_episode():
    _, observation, _, (_, (places, starts)) = numbers(vectorize_keeping(counting(2), 4, fresh=4), 8)
    ends = observation[1::2]
    assert len(np.unique(ends)) == ends.size
    for t in range(1, 8, 2):
        np.testing.assert_array_equal(observation[t][places[t]], starts[1][t, :, 0])


def test_one_fresh_start_a_step_replaces_one():
    env = vectorize_keeping(counting(1), 4, fresh=1)
    _, observation, _, (_, (places, starts)) = numbers(env, 12)
    assert starts[1].shape == (12, 1, 1)  # T k starts, not T B
    changed = np.diff(observation, axis=0) != 0
    for t in range(11):
        np.testing.assert_array_equal(np.flatnonzero(changed[t]), places[t + 1])
    assert len(np.unique(places)) == 4


def test_an_evaluation_draws_no_starts_and_sees_the_same():
    distribution = categorical(2)

    def judge(key, env):
        judged = steps.evaluate(steps.memoryless(lambda x: jnp.zeros((len(x), 2))), distribution, env, key, max_steps=9)
        return judged, env.reset(key)[1], env.ahead(key, 1)

    plain, keeping = envs.vectorize(counting(3), 4), vectorize_keeping(counting(3), 4, fresh=0)
    expected, _, drawn = jax.jit(lambda key: judge(key, plain))(jax.random.key(5))
    found, _, none = jax.jit(lambda key: judge(key, keeping))(jax.random.key(5))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    np.testing.assert_array_equal(found[1], [3] * 4)
    assert len(np.unique(found[0])) == 4
    assert len(jax.tree.leaves(drawn)) == 4 and len(jax.tree.leaves(none)) == 1  # keys for the steps, and no states


def test_noised_samples_are_known_with_and_without():
    plain, keeping = envs.load_vector("probes/denoise", 4), envs.load_vector("probes/denoise", 4, fresh_starts=1)
    given = (jnp.ones(2), jnp.zeros(2), jnp.ones(2), jnp.int32(1))
    jax.tree.map(np.testing.assert_array_equal, keeping.noised(*given), plain.noised(*given))


def test_how_many():
    with pytest.raises(ValueError, match="fresh_starts=5"):
        envs.load_vector("probes/matching", 4, fresh_starts=5)
