"""gymnasium's environments through the host callback: what a loop of gymnasium itself gives."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import envs
from rl_jax.envs.adapters import from_gymnasium
from rl_jax.envs.host_worlds import load_host_env
from rl_jax.rollout.envs import steps


class Counter(gymnasium.Env):
    """A user's own: counts up, ends at 3 by itself or is cut off at `limit`; the reward is the action."""

    observation_space = gymnasium.spaces.Box(0.0, 10.0, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, limit=10):
        self.limit = limit

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2), {}

    def step(self, action):
        self.time += 1
        observation = np.array([self.time, action], np.float64)
        return observation, float(action), self.time >= 3, self.time >= self.limit, {}


class Square(gymnasium.Env):
    """Its actions are matrices, or of shape (); the reward has a digit for each entry, in their order."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)

    def __init__(self, shape=(2, 2)):
        self.action_space = gymnasium.spaces.Box(-9.0, 9.0, shape, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert action.shape == self.action_space.shape
        return np.zeros(1, np.float32), float("".join(str(int(x)) for x in np.ravel(action))), False, False, {}


@pytest.fixture(autouse=True, scope="module")
def registered():
    gymnasium.register("TestCounter-v0", Counter)
    gymnasium.register("TestSquare-v0", Square)
    yield
    del gymnasium.registry["TestCounter-v0"], gymnasium.registry["TestSquare-v0"]


def rollout(env, actions):
    """The Steps of a fixed row of actions [T], the same in each world, from a compiled scan."""

    def step(state, action):
        state, observation, now = env.step(state, jnp.full(env.num_envs, action), ())
        return state, (observation, now)

    def whole():
        state, first = env.reset(jax.random.key(0))
        return first, jax.lax.scan(step, state, actions)[1]

    return jax.device_get(jax.jit(whole)())


@pytest.mark.parametrize("limit", [2, 10])
def test_a_users_environment_runs_unchanged(limit):
    env = envs.load_vector("gymnasium/TestCounter-v0", 3, limit=limit)
    assert env.action_space == envs.Discrete(2) and env.observation_space.shape == (2,) and not env.pure
    first, (observation, now) = rollout(env, jnp.asarray([1, 0, 1, 1]))
    length = min(limit, 3)
    time = np.arange(4) % length + 1
    np.testing.assert_array_equal(first, np.zeros((3, 2)))
    np.testing.assert_array_equal(now.observation[:, 0, 0], time)
    np.testing.assert_array_equal(observation[:, 0, 0], np.where(time == length, 0, time))
    np.testing.assert_array_equal(now.reward[:, 2], [1, 0, 1, 1])
    np.testing.assert_array_equal(now.terminated[:, 1], (time == 3))
    np.testing.assert_array_equal(now.truncated[:, 1], (time == limit) & (time != 3))


@pytest.mark.parametrize("shape", [(2, 2), ()])
def test_actions_of_any_shape_are_vectors_here(shape):
    size = int(np.prod(shape))
    env = envs.load_vector("gymnasium/TestSquare-v0", 2, shape=shape)
    single = from_gymnasium.make_single("TestSquare-v0", shape=shape)
    assert env.action_space.shape == single.action_space.shape == (size,)
    single.reset(0)
    assert single.step(np.arange(1.0, 1.0 + size))[1] == float("1234"[:size])

    def once():
        state, _ = env.reset(jax.random.key(0))
        return env.step(state, 4.0 * jnp.arange(2)[:, None] + jnp.arange(1.0, 1.0 + size)[None], ())[2].reward

    np.testing.assert_array_equal(jax.jit(once)(), [float("1234"[:size]), float("5678"[:size])])


def test_collect_and_evaluate_on_the_host():
    from rl_jax.models.agents.distributions import categorical

    env = envs.load_vector("gymnasium/TestCounter-v0", 2)
    distribution = categorical(2)

    def always_one(observation):
        return jnp.broadcast_to(jnp.asarray([-50.0, 50.0]), (2, 2))

    def whole(key):
        worlds = steps.start(env, key)
        worlds, rows, metrics = steps.collect(steps.memoryless(always_one), distribution, env, worlds, key, num_steps=6)
        return rows, metrics

    rows, metrics = jax.jit(whole)(jax.random.key(0))
    assert metrics["episode/return"].value() == 3.0 and metrics["episode/return"].count == 4
    assert rows.rewards.shape == (2, 6)
    judge = jax.jit(lambda key: steps.evaluate(steps.memoryless(always_one), distribution, env, key, max_steps=10))
    returns, lengths, _ = judge(jax.random.key(1))
    np.testing.assert_array_equal(returns, [3.0, 3.0])
    np.testing.assert_array_equal(lengths, [3, 3])


def test_async_steps_as_sync_in_processes_that_are_no_forks_of_this_one():
    hosts = [from_gymnasium._Host("CartPole-v1", 1, mode, {}) for mode in ("sync", "async")]
    try:
        assert hosts[1].envs.context == "forkserver"
        np.testing.assert_array_equal(*[host.reset(0) for host in hosts])
        for _ in range(12):
            ours, theirs = [host.step(np.ones(1, np.int32)) for host in hosts]
            jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    finally:
        hosts[1].envs.close()


def test_spaces():
    with pytest.raises(ValueError, match="MultiBinary"):
        from_gymnasium.space(gymnasium.spaces.MultiBinary(3))
    with pytest.raises(ValueError, match="from 0"):
        from_gymnasium.space(gymnasium.spaces.Discrete(3, start=1))
    with pytest.raises(ValueError, match="a Box of int64"):
        from_gymnasium.flat_space(gymnasium.spaces.Box(0, 3, (2,), np.int64))
    with pytest.raises(ValueError, match="use load_vector"):
        envs.load("gymnasium/CartPole-v1")


def test_discrete_observations_are_one_hot_for_vectors_and_actors():
    env = envs.load_vector("gymnasium/FrozenLake-v1", 2, is_slippery=False)
    first, (observation, now) = rollout(env, jnp.asarray([1, 2, 1]))  # down, right into a hole, down
    assert first.shape == (2, 16) and env.observation_space.shape == (16,) and env.observation_space.high.max() == 1
    np.testing.assert_array_equal(first.argmax(-1), [0, 0])
    np.testing.assert_array_equal(now.observation[:, 0], np.eye(16)[[4, 5, 4]])
    np.testing.assert_array_equal(observation[:, 1], np.eye(16)[[4, 0, 4]])
    single = load_host_env("gymnasium/FrozenLake-v1", is_slippery=False)
    np.testing.assert_array_equal(single.reset(0), np.eye(16, dtype=np.float32)[0])
    seen, _, terminated, truncated = single.step(1)
    np.testing.assert_array_equal(seen, np.eye(16)[4])
    assert single.observation_space.shape == (16,) and not terminated and not truncated
