"""shaping.py: rewards before the advantage."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import shaping

REWARDS = jnp.array([1.0, 0.0, 0.5, 1.0, 0.25, 0.0])
LENGTHS = jnp.array([3, 12, 14, 16, 20, 13])
TRUNCATED = LENGTHS == 20


def test_unchanged():
    np.testing.assert_array_equal(shaping.unchanged(REWARDS, LENGTHS, TRUNCATED, jax.random.key(0)), REWARDS)


def test_shuffled_keeps_the_rewards_and_breaks_their_order():
    rewards = jnp.arange(64.0)
    first = jax.jit(shaping.shuffled)(rewards, rewards, rewards > 5, jax.random.key(0))
    np.testing.assert_array_equal(jnp.sort(first), rewards)
    assert np.mean(np.asarray(first == rewards)) < 0.2
    again, other = (shaping.shuffled(rewards, rewards, rewards > 5, jax.random.key(seed)) for seed in (0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    with pytest.raises(AssertionError):
        shaping.shuffled(jnp.zeros((2, 2)), LENGTHS, TRUNCATED, jax.random.key(0))


def test_overlong_is_linear_inside_the_buffer():
    """max_length 16, buffer 4: nothing up to 12 tokens, -1/4 a token from there, -penalty at 16."""
    shape = functools.partial(shaping.overlong, max_length=16, buffer=4)
    change = shape(REWARDS, LENGTHS, TRUNCATED, jax.random.key(0)) - REWARDS
    np.testing.assert_allclose(change, [0, 0, -0.5, -1, -2, -0.25], atol=1e-6)
    half = shape(REWARDS, LENGTHS, TRUNCATED, jax.random.key(0), penalty=0.5) - REWARDS
    np.testing.assert_allclose(half, np.asarray(change) / 2, atol=1e-6)
    with pytest.raises(AssertionError):
        shape(REWARDS[:2], LENGTHS, TRUNCATED, jax.random.key(0))
