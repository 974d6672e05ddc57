"""stats/best_of_n.py: against all samples of n, listed, and the optimum of KL-regularized RL."""

import itertools

import numpy as np
import pytest

from experiments.studies import best_of_n_limit
from rl_jax.rewards.benchmarks import best_of_n_kl
from rl_jax.stats import best_of_n

PROBS = np.array([0.1, 0.3, 0.25, 0.2, 0.15])
REWARDS = np.array([1.0, -2.0, 1.0, 0.5, 0.5])  # with ties
LOGS = np.log(PROBS)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_law_is_that_of_the_best_of_all_samples(n):
    """Every ordered sample of n; of equal rewards the first one counts."""
    expected = np.zeros(5)
    for drawn in itertools.product(range(5), repeat=n):
        best = max(drawn, key=lambda i: REWARDS[i])
        expected[best] += np.prod(PROBS[list(drawn)])
    np.testing.assert_allclose(np.exp(best_of_n.best_of_n_law(LOGS, REWARDS, np.log(n))), expected, rtol=1e-10)


def test_the_best_of_very_many_is_the_best_there_is():
    for log_n in (40.0, 500.0, 1e5):
        found = np.exp(best_of_n.best_of_n_law(LOGS, REWARDS, log_n))
        np.testing.assert_allclose(found, [0.1 / 0.35, 0, 0.25 / 0.35, 0, 0], atol=1e-12)
    rare = np.array([np.log1p(-1e-30), np.log(1e-30)])  # n P(best) = 1: the best comes with 1 - 1/e
    found = best_of_n.best_of_n_law(rare, np.array([0.0, 1.0]), 30 * np.log(10))
    np.testing.assert_allclose(np.exp(found[1]), 1 - np.exp(-1), rtol=1e-9)
    found = best_of_n.best_of_n_law(rare, np.array([0.0, 1.0]), np.log(2))  # a best of hardly any mass has twice that
    np.testing.assert_allclose(found[1], np.log(2e-30), rtol=1e-9)
    found = best_of_n.best_of_n_law(rare[::-1], np.array([0.0, 1.0]), np.log(2))  # both are the rare worst one
    np.testing.assert_allclose(found[0], 2 * np.log(1e-30), rtol=1e-9)
    never = best_of_n.best_of_n_law(np.array([0.0, -np.inf]), np.array([0.0, 1.0]), 3.0)
    np.testing.assert_array_equal(never, [0.0, -np.inf])
    with pytest.raises(ValueError, match="log_n=-1 must be at least 0"):
        best_of_n.best_of_n_law(LOGS, REWARDS, -1)
    with pytest.raises(ValueError, match="two arrays of one length"):
        best_of_n.kl(LOGS, LOGS[:2])


def test_its_kl_is_below_the_bound_and_reaches_it_without_ties():
    rng = np.random.default_rng(0)
    for size, n in ((5, 3), (50, 8), (4000, 8)):
        logs = np.log(rng.dirichlet(np.ones(size) * 50))
        divergence = best_of_n.kl(best_of_n.best_of_n_law(logs, rng.normal(size=size), np.log(n)), logs)
        assert 0 < divergence <= best_of_n_kl(n)
    np.testing.assert_allclose(divergence, best_of_n_kl(n), rtol=2e-3)


def test_the_tilted_law_has_the_most_reward_at_its_kl():
    for strength in (0.0, 0.7, 5.0):
        tilted = best_of_n.tilted_law(LOGS, REWARDS, strength)
        expected = PROBS * np.exp(strength * REWARDS)
        np.testing.assert_allclose(np.exp(tilted), expected / expected.sum(), rtol=1e-12)
        divergence = best_of_n.kl(tilted, LOGS)
        np.testing.assert_allclose(best_of_n.matched_strength(LOGS, REWARDS, divergence), strength, atol=1e-6)
    best = best_of_n.best_of_n_law(LOGS, REWARDS, np.log(3))
    matched = best_of_n.matched_strength(LOGS, REWARDS, best_of_n.kl(best, LOGS))
    assert np.exp(best_of_n.tilted_law(LOGS, REWARDS, matched)) @ REWARDS > np.exp(best) @ REWARDS


def test_the_study_sums_over_all_texts():
    """Texts of 3 tokens out of 2, listed one by one, in place of the counts."""
    found = best_of_n_limit([5], arms={"a": dict(length=3)}, nats_per_token=0.5, tokens=2).values["a"]
    rng = np.random.default_rng(5)
    policy, of_token = rng.dirichlet([4.0, 4.0]), rng.normal(size=2)
    texts = list(itertools.product(range(2), repeat=3))
    logs = np.array([sum(np.log(policy[t]) for t in text) for text in texts])
    rewards = np.round([np.mean([of_token[t] for t in text]) for text in texts], 12)
    best = best_of_n.best_of_n_law(logs, rewards, 1.5)
    tilted = best_of_n.tilted_law(logs, rewards, best_of_n.matched_strength(logs, rewards, best_of_n.kl(best, logs)))
    np.testing.assert_allclose(found["reward_gap"], np.exp(tilted) @ rewards - np.exp(best) @ rewards, rtol=1e-6)
    np.testing.assert_allclose(found["kl_per_token"], best_of_n.kl(best, tilted) / 3, rtol=1e-6)
    np.testing.assert_allclose(found["slack"], 1.5 - 1 + np.exp(-1.5) - best_of_n.kl(best, logs), rtol=1e-6)
