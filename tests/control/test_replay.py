"""control/replay.py: the ring against a list in Python, sums over n steps, draws against their distributions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.control import replay
from rl_jax.control.transitions import Transitions

B, T, R = 2, 2, 6
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
BY_ERROR = replay.Priority(exponent=0.5, correction=0.4, floor=0.0)


@functools.partial(jax.jit, static_argnames=("size", "steps", "discount", "priority"), compiler_options=QUICK)
def drawn(ring, written, key, size, *, discount=0.9, steps=1, priority=replay.UNIFORM):
    return replay.draw(ring, written, key, size, discount=discount, steps=steps, priority=priority)


add = jax.jit(replay.add, compiler_options=QUICK)


def rows_of(number):
    """The steps T * number .. of B environments, each of its own number; environment b starts at 100 b."""
    steps = np.arange(T)[None, :] + T * number + 100.0 * np.arange(B)[:, None]
    ended = steps % 5 == 4
    cut = (steps % 7 == 6) & ~ended
    flat = jnp.asarray(steps, jnp.float32)
    return Transitions(
        flat[..., None],
        (flat % 3).astype(jnp.int32),
        flat / 10,
        flat[..., None] + 1,
        jnp.asarray(ended),
        jnp.asarray(cut),
    )


def filled(count, priority=replay.UNIFORM):
    """(the ring after `count` writes, steps of each environment, the list that it should be)."""
    ring, kept = replay.empty(rows_of(0), R, priority), [[] for _ in range(B)]
    for number in range(count):
        rows = rows_of(number)
        ring = add(ring, jnp.int32(T * number), rows)
        for b in range(B):
            kept[b] = (kept[b] + [jax.tree.map(lambda x: np.asarray(x[b, t]), rows) for t in range(T)])[-R:]  # noqa: B023
    return ring, jnp.int32(T * count), kept


def expected_sum(steps, n, discount):
    """(R, d, the last observation) of the first n of these steps, by a loop."""
    total = 0.0
    for k, step in enumerate(steps[:n]):
        total += discount**k * float(step.rewards)
        if step.terminated or step.truncated or k == n - 1:
            return total, 0.0 if step.terminated else discount ** (k + 1), float(step.next_observations[0])
    raise AssertionError


@pytest.mark.parametrize("priority", [replay.UNIFORM, BY_ERROR])
def test_windows_are_successive_steps_of_the_list_and_all_of_them(priority):
    """Rows of any kind, across the ends of episodes, and never across the newest step."""
    ring, written, kept = filled(5, priority)
    windows = jax.jit(
        lambda ring, key: replay.draw_windows(ring, written, key, 200, discount=0.9, length=3, priority=priority),
        compiler_options=QUICK,
    )
    batch = windows(ring, jax.random.key(0))
    seen = np.asarray(batch.steps.observations)[..., 0]
    starts = [[float(x.observations[0]) for x in steps[i : i + 3]] for steps in kept for i in range(len(steps) - 2)]
    assert {tuple(row) for row in seen.tolist()} == {tuple(row) for row in starts}
    np.testing.assert_allclose(batch.steps.rewards, seen / 10, rtol=1e-6)
    np.testing.assert_allclose(batch.discounts, np.where(seen % 5 == 4, 0.0, 0.9), rtol=1e-6)
    rows = np.asarray(ring.rows.observations)[batch.places[:, 0], batch.places[:, 1], 0]
    np.testing.assert_array_equal(rows, seen[:, 0])
    assert batch.weights.shape == (200,)


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("n", [1, 3])
def test_draws_are_of_the_list_and_all_of_it(count, n):
    ring, written, kept = filled(count)
    batch = drawn(ring, written, jax.random.key(0), 400, discount=0.9, steps=n)
    starts = {float(steps[i].observations[0]): steps[i : i + n] for steps in kept for i in range(len(steps) - n + 1)}
    seen = np.asarray(batch.steps.observations)[:, 0]
    assert set(seen.tolist()) == set(starts), "every start of whole sums, and nothing overwritten"
    for i, start in enumerate(seen):
        steps = starts[float(start)]
        total, discount, after = expected_sum(steps, n, 0.9)
        np.testing.assert_allclose(batch.steps.rewards[i], total, rtol=1e-5)
        np.testing.assert_allclose(batch.discounts[i], discount, rtol=1e-5)
        assert batch.steps.next_observations[i, 0] == after and batch.steps.actions[i] == steps[0].actions
    counts = np.unique(seen, return_counts=True)[1]
    np.testing.assert_allclose(counts / 400, 1 / len(starts), atol=0.08)
    assert (batch.weights == 1).all() and ring.priorities == ()


def test_nothing_can_be_read_from_a_replay_without_rows():
    """The branch that keeps the read apart from the write is of zeros."""
    ring = replay.empty(rows_of(0), R, replay.UNIFORM)
    filled_with = ring._replace(rows=jax.tree.map(jnp.ones_like, ring.rows))
    steps = drawn(filled_with, jnp.int32(0), jax.random.key(0), 4).steps
    assert all(not np.asarray(x).any() for x in jax.tree.leaves(steps))


def test_draws_follow_the_priorities_and_the_weights_take_the_bias_back():
    ring, written, kept = filled(5, BY_ERROR)
    assert (ring.priorities == 1).all()
    places = jnp.asarray([[0, 0], [0, 3], [1, 1], [1, 5]])
    errors = jnp.asarray([9.0, 0.25, 4.0, 0.0])
    ring = replay.with_priorities(ring, places, errors, BY_ERROR)
    likely = np.ones((B, R))
    likely[tuple(np.asarray(places).T)] = [3.0, 0.5, 2.0, 0.0]
    np.testing.assert_allclose(ring.priorities, likely, rtol=1e-6)
    size = 20_000
    batch = drawn(ring, written, jax.random.key(1), size, discount=0.9, priority=BY_ERROR)
    found = np.zeros((B, R))
    np.add.at(found, tuple(np.asarray(batch.places).T), 1 / size)
    np.testing.assert_allclose(found, likely / likely.sum(), atol=2 / size + 1e-4)  # stratified: almost exact
    chance = likely[tuple(np.asarray(batch.places).T)] / likely.sum()
    weights = (B * R * chance) ** -0.4
    np.testing.assert_allclose(batch.weights, weights / weights.max(), rtol=1e-4)
    # What is new has the largest priority there is; the newest n - 1 steps start no sum.
    ring = add(ring, written, rows_of(5))
    assert (np.asarray(ring.priorities)[:, [4, 5]] == 3.0).all()
    batch = drawn(ring, written + T, jax.random.key(2), 500, discount=0.9, steps=3, priority=BY_ERROR)
    assert not np.isin(np.asarray(batch.places)[:, 1], [4, 5]).any()
    # Full correction gives the mean of the uniform draw.
    full = BY_ERROR._replace(correction=1.0)
    batch = drawn(ring, written + T, jax.random.key(3), size, discount=0.9, priority=full)
    means = np.average(batch.steps.rewards, weights=batch.weights)
    uniform = np.asarray(ring.rows.rewards)[np.asarray(ring.priorities) > 0].mean()
    np.testing.assert_allclose(means, uniform, rtol=0.01)


@pytest.mark.parametrize("exponent", [0.5, 50.0])
def test_a_step_without_a_finite_error_is_not_drawn_again(exponent):
    ring, written, _ = filled(5, BY_ERROR)
    errors = jnp.asarray([jnp.nan, jnp.inf, 9.0 if exponent < 1 else 1e3, 1.0])  # 1000^50 is not finite, either
    places = jnp.asarray([[0, 0], [0, 3], [1, 1], [1, 5]])
    ring = replay.with_priorities(ring, places, errors, BY_ERROR._replace(exponent=exponent))
    likely = np.ones((B, R))
    likely[tuple(np.asarray(places).T)] = [0.0, 0.0, 3.0 if exponent < 1 else 0.0, 1.0]
    np.testing.assert_allclose(ring.priorities, likely, rtol=1e-6)
    batch = drawn(ring, written, jax.random.key(1), 500, priority=BY_ERROR)
    assert np.isfinite(batch.weights).all() and likely[tuple(np.asarray(batch.places).T)].all()
    assert np.isfinite(add(ring, written, rows_of(5)).priorities).all()


@pytest.mark.parametrize("count", [2, 3])
def test_sums_and_windows_end_where_a_run_was_cut_off(count):
    """Old steps pay 1, new ones 100; the newest old step of environment 1 has terminated. 3 writes fill the ring."""
    still = jnp.zeros((B, T), bool)
    old = rows_of(0)._replace(rewards=jnp.ones((B, T)), terminated=still, truncated=still)
    ring = replay.empty(old, R, replay.UNIFORM)
    for number in range(count):
        ended = old._replace(terminated=still.at[1, -1].set(number == count - 1))
        ring = add(ring, jnp.int32(T * number), ended)
    written = jnp.int32(T * count)
    cut = replay.cut_off(ring, written)
    changed = np.zeros((B, R), bool)
    changed[0, T * count - 1] = True
    np.testing.assert_array_equal(cut.rows.truncated, changed)
    assert all((x is y) for x, y in zip(ring.rows, cut.rows, strict=True) if x is not ring.rows.truncated)
    ring = add(cut, written, old._replace(rewards=jnp.full((B, T), 100.0)))
    batch = drawn(ring, written + T, jax.random.key(0), 200, discount=1.0, steps=3)
    assert set(np.asarray(batch.steps.rewards).tolist()) == {1.0, 2.0, 3.0}, "of old steps alone"
    ends = np.asarray(batch.discounts)[np.asarray(batch.steps.rewards) < 3.0]
    assert set(ends.tolist()) == {0.0, 1.0}, "the value after a cut counts, not that after an end"


def test_a_replay_that_writes_would_wrap_around_is_refused():
    with pytest.raises(ValueError, match="5 steps per environment is no multiple of the 2"):
        replay.add(replay.empty(rows_of(0), 5, replay.Priority()), jnp.int32(0), rows_of(0))


def test_rounding_finds_no_step_that_may_not_be_drawn(monkeypatch):
    """63 + u rounds to 64 parts of 64: behind the last step that may be drawn, where the ring is still empty."""
    ring, written, _ = filled(2, BY_ERROR)
    monkeypatch.setattr(replay.jax.random, "uniform", lambda key, shape: jnp.full(shape, 1 - 2**-23))
    batch = replay.draw(ring, written, jax.random.key(0), 64, discount=0.9, priority=BY_ERROR)
    np.testing.assert_array_equal(batch.places[-1], [B - 1, 3])
    np.testing.assert_array_equal(batch.weights, 1.0)


def test_joined_draws_are_both():
    ring, written, _ = filled(2)
    one, two = (drawn(ring, written, jax.random.key(i), 400, discount=0.9, steps=1) for i in range(2))
    both = replay.join(one, two)
    assert len(both.weights) == 800 and (one.steps.rewards != two.steps.rewards).any()
    np.testing.assert_array_equal(both.steps.rewards[:400], one.steps.rewards)
    np.testing.assert_array_equal(both.steps.rewards[400:], two.steps.rewards)
