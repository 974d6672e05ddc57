"""control/bandits.py and control/vector.py: bounds, closed forms and enumeration."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.tools import known_answers
from rl_jax.control import bandits, vector
from rl_jax.stats import pareto


def test_regrets_against_their_bounds():
    rows = {what.removeprefix("regret of "): found for what, found, _ in known_answers.bandit_regrets(8)}
    gaps = jnp.array([0.0, 0.1, 0.4])
    np.testing.assert_allclose(rows["uniform"], 2000 * 0.5 / 3, rtol=0.05)
    assert rows["thompson"] < rows["ucb1"] < min(rows["uniform"], float(bandits.ucb1_bound(gaps, 2000)))
    assert rows["exp3"] < min(rows["uniform"], bandits.exp3_bound(3, 2000))


def test_an_index_and_probabilities_by_hand():
    found = bandits.ucb1_index(np.array([4.0, 1.0, 0.0]), np.array([2.0, 1.0, 0.0]), 5.0)
    np.testing.assert_allclose(found, [0.5 + np.sqrt(2 * np.log(5) / 4), 1 + np.sqrt(2 * np.log(5)), np.inf], rtol=1e-6)
    probs = bandits.exp3_probs(np.log([1.0, 3.0]).astype(np.float32), 0.2)
    np.testing.assert_allclose(probs, [0.8 * 0.25 + 0.1, 0.8 * 0.75 + 0.1], rtol=1e-6)
    choose, learn = bandits.exp3(steps=100)
    state = learn(bandits.Pulls(*[jnp.zeros(2)] * 3, jnp.float32(0)), jnp.int32(1), jnp.float32(1.0))
    gamma = np.sqrt(2 * np.log(2) / ((np.e - 1) * 100))
    np.testing.assert_allclose(state.logits, [0.0, gamma / (2 * 0.5)], rtol=1e-5)


def test_vector_values_are_those_of_each_objective():
    """On the chain of treasures: the deterministic policies, and the mean of a mixture of them."""
    value_of, shape = known_answers.chain(np.array([1.0, 3.0, 4.0]))
    for stop in range(3):
        logits = jnp.where(jnp.arange(3)[:, None] == stop, jnp.array([[50.0, 0.0]]), jnp.array([[0.0, 50.0]]))
        np.testing.assert_allclose(value_of(logits), [[1.0, 3.0, 4.0][stop], 3.0 - stop], rtol=1e-5)
    half = jnp.zeros(shape).at[2, 0].set(50.0)
    np.testing.assert_allclose(value_of(half), [(1 * 2 + 3 + 4) / 4, (3 * 2 + 2 + 1) / 4], rtol=1e-5)


def test_a_barrier_pulls_back_and_its_own_objective_is_free():
    bounds = jnp.array([5.0, 1.0])
    found = vector.barrier(jnp.array([2.0, 1.5]), bounds, 0, sharpness=20.0)
    np.testing.assert_allclose(found, 2.0 + np.log(0.5) / 20, rtol=1e-6)
    slope = jax.grad(lambda x: vector.barrier(x, bounds, 0))(jnp.array([2.0, 0.9]))
    assert float(slope[1]) > 1.0  # outside of its bound; a clamped log has none


def test_the_second_stage_raises_the_hypervolume():
    rows = dict((what, x) for what, x, _ in known_answers.treasure_fronts(1))
    first, second = rows["hypervolume after stage 1"], rows["hypervolume after stage 2"]
    ends = pareto.hypervolume(np.array([(1.0, 4.0), (4.5, 1.0)]), (0.0, 0.0))
    np.testing.assert_allclose(first, ends, rtol=0.05)
    assert second > 1.2 * first


def test_max_min_of_a_majority_and_a_minority():
    rows = [x for _, x, _ in known_answers.group_returns(1)]
    assert rows[0] < 0.05
    np.testing.assert_allclose(rows[1], 12 / 21, atol=0.015)
    # By enumeration of mixtures: no other policy does better for the worst group.
    rewards = np.array([[1.0, 0.6, 0.0], [0.0, 0.55, 1.0]])
    grid = pareto.weight_grid(3, 60)
    assert np.min(grid @ rewards.T, axis=1).max() <= rows[1] + 0.015
    alone = vector.maxmin(lambda x: rewards[:1] @ jax.nn.softmax(x), jnp.zeros(3), steps=50, learning_rate=1.0)
    plain = jnp.zeros(3)
    for step in range(50):
        plain += 1.0 / np.sqrt(step + 1) * jax.grad(lambda x: rewards[0] @ jax.nn.softmax(x))(plain)
    np.testing.assert_allclose(alone, plain, rtol=1e-4)


def test_annotators_fall_into_their_groups():
    """Ten annotators of two opposed tastes, twenty pairs each; a single reward would put both near zero."""
    rng, truth = np.random.default_rng(0), np.array([[2.0, 0.0, -2.0], [-2.0, 0.0, 2.0]])
    group, pairs, who = np.arange(10) % 2, [], []
    for annotator in range(10):
        for _ in range(20):
            a, b = rng.choice(3, 2, replace=False)
            wins = rng.random() < 1 / (1 + np.exp(truth[group[annotator], b] - truth[group[annotator], a]))
            pairs.append((a, b) if wins else (b, a))
            who.append(annotator)
    first = 0.1 * rng.normal(size=(2, 3)).astype(np.float32)
    table, found = jax.jit(lambda r: vector.grouped(np.array(pairs), np.array(who), 10, r))(first)
    assert len(set(found[::2].tolist())) == 1 and set(found[::2].tolist()) != set(found[1::2].tolist())
    assert np.ptp(np.asarray(table), axis=1).min() > 2.0
    both, _ = vector.grouped(np.array(pairs), np.array(who), 10, first[:1])
    assert np.ptp(np.asarray(both)) < 1.0


def test_the_best_of_n_by_enumeration_and_directions():
    probs, scores = np.array([0.2, 0.5, 0.3]), np.array([1.0, 0.0, 2.0])
    expected = np.zeros(3)
    for draw in itertools.product(range(3), repeat=3):
        expected[max(draw, key=lambda a: scores[a])] += np.prod(probs[list(draw)])
    found = np.exp(vector.best_of(jnp.log(probs), jnp.asarray(scores), 3))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    tied = np.exp(vector.best_of(jnp.log(probs), jnp.array([0.0, 0.0, -1.0]), 2))
    np.testing.assert_allclose(tied, [0.91 * 2 / 7, 0.91 * 5 / 7, 0.09], rtol=1e-5)
    first = [x for _, x, _ in known_answers.direction_control(1)]
    assert all(a > b for a, b in itertools.pairwise(first))
    rewards = jnp.stack([jnp.asarray(scores), -jnp.asarray(scores)], 1)
    along = vector.directional(jnp.log(probs), rewards, [(1.0, 0.0)], 3, 1)
    np.testing.assert_allclose(np.exp(along[0]), expected, rtol=1e-5)
