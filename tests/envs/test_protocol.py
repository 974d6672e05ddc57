"""envs: resets in a Vector, time limits, the probes' own dynamics, gymnax's, and names."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import envs
from rl_jax.envs.worlds import probes


def walk(env, actions, key=0):
    """(first observation, observations to act on [T, B, ...], Steps [T, B]) of a Vector under fixed actions [T]."""

    def whole(key):
        start_key, ahead_key = jax.random.split(key)
        state, first = env.reset(start_key)
        shape = (env.num_envs, *((1,) if isinstance(env.action_space, envs.Box) else ()))

        def step(state, now):
            action, ahead = now
            state, observation, out = env.step(state, jnp.broadcast_to(action, shape), ahead)
            return state, (observation, out)

        return first, *jax.lax.scan(step, state, (actions, env.ahead(ahead_key, len(actions))))[1]

    return jax.device_get(jax.jit(whole)(jax.random.key(key)))


def test_a_vector_starts_again_and_shows_the_last_observation():
    env = envs.vectorize(probes.corridor(length=2), 3)
    _, observation, step = walk(env, jnp.asarray([1, 1, 0, 1, 1]))
    place = step.observation.argmax(-1)
    np.testing.assert_array_equal(place, np.broadcast_to([[1], [2], [0], [1], [2]], (5, 3)))
    np.testing.assert_array_equal(observation.argmax(-1), np.broadcast_to([[1], [0], [0], [1], [0]], (5, 3)))
    np.testing.assert_array_equal(step.terminated[:, 0], [False, True, False, False, True])
    np.testing.assert_array_equal(step.reward[:, 1], [0, 1, 0, 0, 1])
    assert not step.truncated.any()


def test_a_time_limit_truncates_and_starts_counting_again():
    _, _, step = walk(envs.vectorize(probes.endless(limit=3), 2), jnp.zeros(7, jnp.int32))
    np.testing.assert_array_equal(step.truncated[:, 0], [False, False, True, False, False, True, False])
    assert not step.terminated.any()
    # A step that terminates is not truncated as well.
    ended = envs.time_limit(probes.value(), 1)
    _, step = ended.step(jax.random.key(0), ended.reset(jax.random.key(0))[0], jnp.int32(0))
    assert step.terminated and not step.truncated


def test_each_start_is_its_own():
    first, observation, step = walk(envs.vectorize(probes.matching(), 64), jnp.ones(32, jnp.int32))
    assert 16 < (first == 1).sum() < 48
    assert 0.45 < (observation == 1).mean() < 0.55
    # The world that is judged is the one that was shown before.
    before = np.concatenate([first[None], observation[:-1]])[..., 0]
    np.testing.assert_array_equal(step.reward, before)


def test_probes_pay_what_they_say():
    _, _, step = walk(envs.vectorize(probes.discount(), 1), jnp.zeros(4, jnp.int32))
    np.testing.assert_array_equal(step.reward[:, 0], [0, 1, 0, 1])
    _, _, step = walk(envs.vectorize(probes.action(), 1), jnp.asarray([0, 1]))
    np.testing.assert_array_equal(step.reward[:, 0], [-1, 1])
    first, _, step = walk(envs.vectorize(probes.aim(), 4), jnp.asarray([0.25]))
    np.testing.assert_allclose(step.reward[0], -np.square(0.25 - 0.5 * first[:, 0]), rtol=1e-6)
    _, _, step = walk(envs.vectorize(probes.observation(), 4), jnp.zeros(1, jnp.int32))
    np.testing.assert_array_equal(step.reward[0], step.observation[0, :, 0])


def test_cartpole_of_gymnax_moves_as_gymnasiums():
    env = envs.load("gymnax/CartPole-v1")
    assert env.action_space == envs.Discrete(2) and env.observation_space.shape == (4,)
    state, observation = env.reset(jax.random.key(0))
    peer = gymnasium.make("CartPole-v1").unwrapped
    peer.reset(seed=0)
    peer.state = np.asarray(observation, np.float64)
    step = jax.jit(env.step)
    for t in range(40):
        action = t // 3 % 2
        state, now = step(jax.random.key(1), state, jnp.int32(action))
        expected, reward, terminated, _, _ = peer.step(action)
        np.testing.assert_allclose(now.observation, expected, rtol=1e-4, atol=1e-5)
        assert bool(now.terminated) == terminated and float(now.reward) == reward
        if terminated:
            break


def test_discrete_observations_of_gymnax_are_one_hot():
    env = envs.load_vector("gymnax/FrozenLake-misc", 2, fresh_starts=0)
    assert env.observation_space.shape == (16,) and env.observation_space.high.max() == 1
    state, first = env.reset(jax.random.key(0))
    np.testing.assert_array_equal(first, np.eye(16, dtype=np.float32)[[0, 0]])
    _, _, now = env.step(state, jnp.ones(2, jnp.int32), jax.tree.map(lambda x: x[0], env.ahead(jax.random.key(1), 1)))
    np.testing.assert_array_equal(now.observation.sum(-1), [1, 1])


def test_gymnax_truncates_and_takes_parameters():
    env = envs.load("gymnax/Pendulum-v1", max_steps_in_episode=4)
    _, _, step = walk(envs.vectorize(env, 2), jnp.zeros(9))
    np.testing.assert_array_equal(step.truncated[:, 0], [t in (3, 7) for t in range(9)])
    assert not step.terminated.any() and step.reward.shape == (9, 2)
    assert env.action_space.low == -2.0 and env.action_space.high == 2.0


@pytest.mark.parametrize(
    ("name", "keywords", "said"),
    [
        ("gymnax/CartPole", {}, "CartPole-v1"),
        ("gymnax/CartPole-v1", {"max_steps": 3}, "max_steps_in_episode"),
        ("probes/walk", {}, "corridor"),
        ("probes/corridor", {"lenght": 3}, "length"),
        ("CartPole-v1", {}, "gymnax/NAME"),
    ],
)
def test_what_is_unknown(name, keywords, said):
    with pytest.raises(ValueError, match=said):
        envs.load(name, **keywords)
