"""rl_jax/envs/host_worlds.py: the shuttle's rule, names, and gymnasium's environments one at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import envs
from rl_jax.envs.adapters.from_host import Row
from rl_jax.envs.host_worlds import Shuttle, load_host_env
from rl_jax.rollout.actors.stage import Message, Stage


def returns(policy, count=200):
    """Mean return of a policy of (position, light)."""
    total = 0.0
    for seed in range(count):
        env = Shuttle()
        shown = env.reset(seed)
        while True:
            shown, reward, terminated, truncated = env.step(policy(shown))
            total += reward
            if terminated or truncated:
                break
    return total / count


def test_the_light_is_worth_1_its_opposite_minus_1_and_nothing_else_anything():
    rng = np.random.default_rng(0)
    assert returns(lambda shown: int(shown[1] > 0)) == 1.0
    assert returns(lambda shown: int(shown[1] < 0)) == -1.0
    assert abs(returns(lambda shown: rng.integers(2))) < 0.25
    assert returns(lambda shown: int(shown[0] <= 0)) == 0.0  # it stays in the middle until it is cut off


def test_a_seed_is_an_episode():
    first, second = Shuttle(), Shuttle()
    assert all((first.reset(seed) == second.reset(seed)).all() for seed in range(9))


def test_names_and_keywords_are_checked():
    assert load_host_env("host/shuttle", length=2).length == 2
    assert load_host_env("tests.envs.test_host_worlds:made", size=3).length == 3
    with pytest.raises(ValueError, match="env.name='probes/aim' is no environment that actors can step.*host/shuttle"):
        load_host_env("probes/aim")
    with pytest.raises(ValueError, match="shuttle takes no keyword 'x'"):
        load_host_env("host/shuttle", x=1)
    with pytest.raises(ValueError, match="length=1 must be 2 or more"):
        load_host_env("host/shuttle", length=1)


def test_as_a_vector_episodes_begin_anew_and_keep_their_last_observation():
    """Against the same environments one at a time, with the seeds that the vector draws."""
    host, seeds = Row([Shuttle(max_steps=2) for _ in range(2)]), np.random.default_rng(5)
    plain = [Shuttle(max_steps=2) for _ in range(2)]
    begin = lambda env: env.reset(int(seeds.integers(2**31 - 1)))  # noqa: E731
    np.testing.assert_array_equal(host.reset(5), np.stack([begin(env) for env in plain]))
    for actions in ([1, 0], [1, 1], [0, 1], [0, 0], [1, 0]):
        following, last, rewards, terminated, truncated = host.step(np.int32(actions))
        for i, env in enumerate(plain):
            shown, reward, over, cut = env.step(actions[i])
            assert (last[i] == shown).all() and (rewards[i], terminated[i], truncated[i]) == (reward, over, cut)
            assert (following[i] == (begin(env) if over or cut else shown)).all()
    vector = envs.load_vector("host/tests.envs.test_host_worlds:made", 3, size=3)
    assert vector.num_envs == 3 and not vector.pure and vector.action_space.n == 2
    with pytest.raises(ValueError, match="is no environment"):
        envs.load_vector("host/nowhere", 1)


def made(*, size):
    """An environment of one's own."""
    return Shuttle(size)


class Halving(Shuttle):
    """An environment that writes into its action."""

    def __init__(self):
        super().__init__()
        self.action_space = envs.Box(np.full(2, -1.0, np.float32), np.ones(2, np.float32))

    def step(self, action):
        action *= 0.5
        return self._observation(), float(action.sum()), False, False


def test_an_environment_may_write_into_its_action():
    actions = np.ones((1, 2), np.float32)
    actions.flags.writeable = False  # as an array of JAX, or one from another process
    vector = envs.load_vector("host/tests.envs.test_host_worlds:Halving", 1)
    once = jax.jit(lambda key: vector.step(vector.reset(key)[0], jnp.ones((1, 2)), ())[2])
    assert once(jax.random.key(0)).reward == 1.0
    stage = Stage(Halving, seed=0)
    past = Message("restore", {"envs": [[0, 0, 1]]}, [actions])
    assert stage.handle(past).kind == "restored" and stage.step([0], actions)[2] == 1.0
    asked = np.ones((1, 2), np.float32)
    stage.step([0], asked)
    assert (asked == 1.0).all()  # what was asked for stays, for the ledger


def test_gymnasiums_environments_are_theirs():
    gymnasium = pytest.importorskip("gymnasium")
    ours, theirs = load_host_env("gymnasium/CartPole-v1"), gymnasium.make("CartPole-v1")
    assert ours.action_space.n == 2 and ours.observation_space.shape == (4,)
    assert (ours.reset(7) == theirs.reset(seed=7)[0]).all()
    for _ in range(50):
        mine, their = ours.step(np.int32(1)), theirs.step(1)
        assert (mine[0] == their[0]).all() and mine[1:] == (their[1], their[2], their[3] and not their[2])
        if mine[2]:
            return
    raise AssertionError("a pole that is pushed to one side falls")
