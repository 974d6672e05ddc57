"""envs/snapshots.py: which states are kept, how often each is a start, and when the starts end."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import envs
from rl_jax.envs import snapshots
from rl_jax.envs.worlds import probes

ENV = probes.corridor(length=12)


@pytest.fixture(scope="module")
def made():
    teacher = functools.partial(snapshots.mostly, action=1, share=1.0)
    options = dict(episodes=2, every=5, max_steps=20, clusters=2)
    return snapshots.collected(ENV, teacher, jax.random.key(0), **options)


def test_every_fifth_state_of_the_teacher_is_kept_until_its_end(made):
    """It walks right: places 0, 5 and 10 of each episode; at 12 the episode is over."""
    np.testing.assert_array_equal(np.argmax(made.observations, 1), [0, 5, 10, 0, 5, 10])
    np.testing.assert_array_equal(made.states.state, [0, 5, 10, 0, 5, 10])
    np.testing.assert_allclose(made.probs.sum(), 1.0)


def test_a_uniform_cluster_then_a_uniform_member():
    probs = snapshots.start_probs(np.array([0, 0, 0, 1]))
    np.testing.assert_allclose(probs, [1 / 6, 1 / 6, 1 / 6, 1 / 2])
    np.testing.assert_allclose(snapshots.start_probs(np.zeros(5, int)), 0.2)
    points = np.concatenate([np.zeros((3, 1)), np.full((2, 1), 9.0)]) + np.linspace(0, 0.1, 5)[:, None]
    np.testing.assert_array_equal(snapshots.clustered(points, 2), [0, 0, 0, 1, 1])
    np.testing.assert_array_equal(snapshots.clustered(points, 1), 0)


def walked(env, steps):
    """(places acted in, done) int, bool [steps, B] of walking left."""
    state, seen = env.reset(jax.random.key(3))
    ahead = env.ahead(jax.random.key(4), steps)

    def step(carry, noise):
        state, seen = carry
        state, after, now = env.step(state, jnp.zeros(env.num_envs, jnp.int32), noise)
        return (state, after), (jnp.argmax(seen, 1), now.done, now.truncated)

    return jax.tree.map(np.asarray, jax.jit(lambda s, a: jax.lax.scan(step, s, a)[1])((state, seen), ahead))


def test_episodes_begin_from_snapshots_and_later_as_usual(made):
    places, done, truncated = walked(snapshots.vectorize_from(ENV, 64, made, until=9, limit=3), 70)
    assert set(places[0]) == {0, 5, 10}
    assert (done[2] & truncated[2]).all() and not done[:2].any()  # after three steps
    assert set(places[3]) == set(places[6]) == {0, 5, 10}
    assert set(places[9]) == {0}  # of age 9: the environment's own start
    assert not done[9:56].any() and done[56].all()  # and its own limit of 48 steps
    counts = np.bincount(places[0], minlength=13)[[0, 5, 10]] / 64
    weights = np.bincount(np.argmax(made.observations, 1), weights=made.probs, minlength=13)[[0, 5, 10]]
    np.testing.assert_allclose(counts, weights, atol=0.2)


def test_without_snapshots_it_is_the_usual_vector(made):
    usual, none = (
        walked(envs.vectorize(ENV, 4), 60),
        walked(snapshots.vectorize_from(ENV, 4, made, until=0, limit=3), 60),
    )
    jax.tree.map(np.testing.assert_array_equal, usual, none)


def test_clusters_are_of_the_teachers_value():
    """Two of the six snapshots have another value: each of these is a start twice as often as one of the four."""
    teacher = functools.partial(snapshots.mostly, action=1, share=1.0)
    options = dict(episodes=2, every=5, max_steps=20, clusters=2)
    found = snapshots.collected(ENV, teacher, jax.random.key(0), value=lambda seen: 3.0 * seen[:, 10], **options)
    np.testing.assert_array_equal(np.argmax(found.observations, 1), [0, 5, 10, 0, 5, 10])
    np.testing.assert_allclose(found.probs, np.array([1, 1, 2, 1, 1, 2]) / 8)
