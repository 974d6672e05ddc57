"""Bandits whose data cover a part of the actions, scored answers of others, and iterations: closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.studies import coverage, iterations
from experiments.studies.base import seed_keys


@pytest.mark.slow
def test_pairs_are_of_two_covered_actions_and_the_better_one_mostly_comes_first():
    made = coverage.make_bandit(jax.random.key(0), actions=9, covered=4, features=3, pairs=4000)
    pairs = np.asarray(made.pairs)
    assert set(np.unique(pairs)) == {0, 1, 2, 3} and (pairs[:, 0] != pairs[:, 1]).all()
    rewards = np.asarray(made.rewards, np.float64)
    expected = 1 / (1 + np.exp(-np.abs(rewards[pairs[:, 0]] - rewards[pairs[:, 1]])))
    right = rewards[pairs[:, 0]] > rewards[pairs[:, 1]]
    assert right.mean() == pytest.approx(expected.mean(), abs=0.03)
    assert np.exp(made.ref).sum() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.slow
def test_scored_answers_of_another_policy_are_enough_for_copg():
    settings = dict(actions=4, pairs=300, skew=0.5, beta=0.5, learning_rate=0.1, steps=300)
    arms = {"copg": dict(compare="contrastive_policy_gradient", offset=3.0)}
    found = coverage.off_policy_rewards((0, 1), arms=arms, **settings).values["copg"]
    np.testing.assert_allclose([found["kl"], found["regret"]], 0.0, atol=1e-4)


@pytest.mark.slow
def test_an_offset_of_the_rewards_moves_the_policy_gradient():
    """Off policy. CoPG reads differences of rewards only: its 3 changes nothing above."""
    settings = dict(actions=4, pairs=300, skew=0.5, beta=0.5, learning_rate=0.05, steps=50)
    arms = {str(x): dict(compare="nash_md", offset=x) for x in (0.5, 0.0)}
    found = coverage.off_policy_rewards((0, 1), arms=arms, **settings).values
    assert np.abs(found["0.5"]["kl"] - found["0.0"]["kl"]).min() > 1e-3


@pytest.mark.slow
def test_a_heavy_kl_on_own_samples_holds_the_policy_at_the_reference():
    settings = dict(actions=12, covered=4, features=3, pairs=16, beta=0.1, learning_rate=0.05, steps=80)
    arms = {"hypo": dict(regularizer="online_kl", regularizer_coef=5.0)}
    row = coverage.partial_coverage((0, 1), arms=arms, **settings).values["hypo"]
    assert 0.0 < max(row["kl"]) < 0.05
    np.testing.assert_allclose(row["value"], row["reward"] - 0.1 * row["kl"], rtol=1e-5)


@pytest.mark.slow
def test_an_iteration_ends_at_the_tilted_reference_and_goes_on_by_a_share():
    """From many pairs logits = ref + r / beta, and 1 + rate times as far after the extrapolation."""
    arms = {"apo": dict(schedule=dict(fn="extrapolated", rate=0.3))}
    settings = dict(slots=dict(beta=1.0), actions=3, pairs=8000, iterations=1, learning_rate=0.1, steps=100)
    found = iterations.preference_iterations((0, 1), arms=arms, **settings).values["apo"]["regret_1"]
    for key, regret in zip(seed_keys((0, 1)), found, strict=True):
        key_r, key_ref, _ = jax.random.split(key, 3)
        rewards = jax.random.normal(key_r, (3,))
        ref = jax.nn.log_softmax(0.5 * jax.random.normal(key_ref, (3,)))
        expected = jnp.max(rewards) - jax.nn.softmax(ref + 1.3 * rewards) @ rewards
        assert regret == pytest.approx(float(expected), abs=0.06)
