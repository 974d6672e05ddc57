"""credit/ensembles.py robust (BRME, arXiv 2409.15360): the pessimistic member is one of expectations, not of rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.credit import ensembles

# Member 0 is nearest the mean of all, member 2 has the lowest expectation, and each is the lowest on some row.
REWARDS = np.float32([[1.0, 2.0, -1.0], [2.0, 1.5, 2.5], [0.0, 1.0, -3.0], [1.0, 3.0, 1.5]])


def by_hand(rewards, weight):
    """Loops over members and rows."""
    rows, members = rewards.shape
    means = [sum(rewards[i, k] for i in range(rows)) / rows for k in range(members)]
    distance = [sum((rewards[i, k] - rewards[i].mean()) ** 2 for i in range(rows)) for k in range(members)]
    nominal, pessimist = int(np.argmin(distance)), int(np.argmin(means))
    return [weight * rewards[i, nominal] + (1 - weight) * rewards[i, pessimist] for i in range(rows)]


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_it_is_the_mixture_of_two_members(weight):
    found = ensembles.robust(jnp.asarray(REWARDS), weight=weight)
    np.testing.assert_allclose(found, by_hand(np.float64(REWARDS), weight), rtol=1e-6, atol=1e-6)
    slope = jax.grad(lambda x: ensembles.robust(x, weight=weight).sum())(jnp.asarray(REWARDS))
    np.testing.assert_allclose(slope, np.tile([weight, 0.0, 1 - weight], (4, 1)), atol=1e-6)


def test_the_minimum_of_expectations_is_above_the_expected_minimum():
    worst = ensembles.robust(jnp.asarray(REWARDS), weight=0.0)
    np.testing.assert_allclose(worst.mean(), REWARDS.mean(axis=0).min(), rtol=1e-6)
    by_row = ensembles.robust(jnp.asarray(REWARDS), weight=0.0, batch=False)
    np.testing.assert_allclose(by_row, ensembles.worst_case(jnp.asarray(REWARDS)))
    assert by_row.mean() < worst.mean() < REWARDS.mean()


def test_the_defaults():
    """.3 of the nominal member and the batch's pessimist; UWO subtracts a tenth of the variance with n - 1."""
    rewards = jnp.asarray(REWARDS)
    np.testing.assert_allclose(ensembles.robust(rewards), by_hand(np.float64(REWARDS), 0.3), rtol=1e-6)
    for more in np.random.default_rng(0).normal(size=(20, 4, 3)).astype(np.float32):
        np.testing.assert_allclose(ensembles.robust(more), by_hand(np.float64(more), 0.3), rtol=1e-4, atol=1e-6)
    found = ensembles.uncertainty_weighted(rewards[:, None])  # [4, 1, 3]: the last axis is the members'
    np.testing.assert_array_equal(found[:, 0], ensembles.uncertainty_weighted(rewards))
    found = ensembles.uncertainty_weighted(rewards)
    np.testing.assert_allclose(found, REWARDS.mean(1) - 0.1 * REWARDS.var(1, ddof=1), rtol=1e-5, atol=1e-6)


def test_the_group_with_the_lowest_mean_is_served():
    np.testing.assert_array_equal(ensembles.max_min(jnp.asarray(REWARDS)), REWARDS[:, 2])
    np.testing.assert_array_equal(ensembles.max_min(jnp.asarray(REWARDS[:, ::-1])), REWARDS[:, 2])


def test_a_std_of_zero_counts_as_one():
    means, stds = np.float32([1.0, -2.0, 0.5]), np.float32([0.5, 0.0, 2.0])
    found = ensembles.standardized(jnp.asarray(REWARDS), means, stds)
    np.testing.assert_allclose(found, (REWARDS - means) / [0.5, 1.0, 2.0], rtol=1e-6)


def test_one_member_is_that_member():
    alone = jnp.asarray(REWARDS[:, :1])
    np.testing.assert_allclose(ensembles.robust(alone), alone[:, 0])
