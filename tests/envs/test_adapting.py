"""envs.adapting: brax's interface by a world that anyone can follow, and what errors say."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import envs
from rl_jax.envs.adapters import adapting


class State(NamedTuple):
    """Brax's fields: info is a dictionary that a step writes into."""

    obs: dict
    reward: jax.Array
    done: jax.Array
    info: dict


class Line:
    """Moves by the action; over beyond 1, and not a number beyond 2. The dtypes of a step are not those of a reset."""

    action_size = 1

    def reset(self, key):
        seen = {"state": jnp.zeros(1), "pixels": jnp.zeros((2, 2, 3))}
        info = {"key": key, "steps": jnp.zeros((), jnp.int32), "nothing": jnp.zeros((0, 3))}
        return State(seen, jnp.zeros(()), jnp.zeros(()), info)

    def step(self, state, action):
        at = state.obs["state"] + action
        at = jnp.where(at > 2.0, jnp.nan, at)
        state.info["steps"] += 1.0
        done = at[0] > 1.0
        return state._replace(obs=state.obs | {"state": at}, reward=at[0], done=done)


def walk(actions, **keywords):
    env = adapting.from_brax_interface("line", Line(), **{"episode_length": 3, "observation": "state"} | keywords)
    state, first = env.reset(jax.random.key(0))

    def step(state, action):
        return env.step(jax.random.key(1), state, action)

    state, now = jax.jit(lambda state: jax.lax.scan(step, state, jnp.asarray(actions)[:, None]))(state)
    return env, first, now, state.state


def test_a_limit_truncates_and_an_end_terminates():
    env, first, now, state = walk([0.25, 0.25, 0.25])
    assert env.action_space.low == -1.0 and env.action_space.high == 1.0 and env.observation_space.shape == (1,)
    np.testing.assert_array_equal(now.observation[:, 0], [0.25, 0.5, 0.75])
    np.testing.assert_array_equal(now.truncated, [False, False, True])
    assert not now.terminated.any() and first.shape == (1,)
    assert [int(x) for x in state if x.dtype == jnp.int32] == [3]  # the steps
    _, _, now, _ = walk([0.25, 0.5, 0.5])
    np.testing.assert_array_equal(now.terminated, [False, False, True])
    assert not now.truncated.any()


def test_an_action_is_repeated_as_by_braxs_wrapper():
    """Rewards are added, the last repetition says what is seen and whether it is over, and the limit counts them."""
    _, _, now, state = walk([0.125, 0.25], repeat=2)
    np.testing.assert_array_equal(now.observation[:, 0], [0.25, 0.75])
    np.testing.assert_array_equal(now.reward, [0.125 + 0.25, 0.5 + 0.75])
    np.testing.assert_array_equal(now.truncated, [False, True])  # after 4 of 3
    assert [int(x) for x in state if x.dtype == jnp.int32] == [4]
    _, _, now, _ = walk([0.125, 0.5], repeat=2)
    np.testing.assert_array_equal(now.terminated, [False, True])
    with pytest.raises(ValueError, match="line: action_repeat=0 must be"):
        walk([0.0], repeat=0)


def test_physics_that_is_not_finite_ends_and_leaves_no_nan():
    _, _, now, _ = walk([0.5, 5.0])
    np.testing.assert_array_equal(now.terminated, [False, True])
    np.testing.assert_array_equal(now.reward, [0.5, 0.0])
    np.testing.assert_array_equal(now.observation[:, 0], [0.5, 0.0])


def test_a_dictionary_of_observations_needs_a_name():
    env, first, *_ = walk([0.0], observation="pixels")
    assert first.shape == env.observation_space.shape == (2, 2, 3)
    with pytest.raises(ValueError, match="none of pixels, state"):
        walk([0.0], observation="speed")


def test_a_step_does_not_write_into_the_state_before():
    env = adapting.from_brax_interface("line", Line(), 3, "state")
    state, _ = env.reset(jax.random.key(0))
    before = jax.tree.map(lambda x: x, state)
    after, _ = env.step(jax.random.key(1), state, jnp.ones(1))
    assert all(x is y for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(before), strict=True))
    # A checkpoint cannot hold an array without an entry.
    assert all(x.size for x in jax.tree.leaves(after)) and len(after.state) == 6


@dataclasses.dataclass
class Settings:
    """Parameters of an environment."""

    limit: int = 3

    def replace(self, **fields):
        return dataclasses.replace(self, **fields)


def test_what_errors_name():
    adapting.check_name("zoo", "cat", ["cat", "dog"])
    with pytest.raises(ValueError, match="zoo has no 'cow'; it has: cat, dog"):
        adapting.check_name("zoo", "cow", ["dog", "cat"])
    with pytest.raises(ValueError, match="the nearest of its 100 names are: n77"):
        adapting.check_name("zoo", "n77x", [f"n{i}" for i in range(100)])
    assert adapting.with_fields("zoo", Settings(), {"limit": 4}).limit == 4
    with pytest.raises(ValueError, match=r"\['size'\]; it has: limit"):
        adapting.with_fields("zoo", Settings(), {"size": 4})
    with pytest.raises(ValueError, match="zoo/cat: .*legs"):
        adapting.construct("zoo/cat", lambda *, tail: tail, legs=4)
    box = adapting.box(0.0, [1.0, 2.0], (3, 2))
    assert box.shape == (3, 2) and isinstance(box, envs.Box) and box.high[2, 1] == 2.0
