"""losses/difficulty.py on ragged rows: by loops over the groups' shares of right answers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.losses import difficulty

GROUP = 4
REWARDS = np.float32([[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
LENGTHS = np.arange(20) % 4
MASK = np.arange(3) < LENGTHS[:, None]
RNG = np.random.default_rng(0)
LOG_PROBS, REFERENCE = -RNG.uniform(0.1, 2, (2, 20, 3))


def advantages():
    """GRPO's, with the standard deviation of n - 1; 0 for a group of equal rewards."""
    spread = REWARDS.std(axis=1, ddof=1, keepdims=True)
    return ((REWARDS - REWARDS.mean(axis=1, keepdims=True)) / np.where(spread > 0, spread, 1.0)).ravel()


def weights(name):
    share, right = np.repeat(REWARDS.mean(axis=1), GROUP), REWARDS.ravel() > 0
    spread = np.repeat(REWARDS.std(axis=1) > 0, GROUP)
    if name == "shaped_k3":
        return np.where(right & spread, 1 - np.exp(-np.e * share), 1.0)
    return np.where(share <= 0.25, 0.5, np.where(share <= 0.5, 2.0, 3.0)) * spread


@pytest.mark.parametrize("name", ["shaped_k3", "bucketed_k3"])
def test_the_kl_is_weighted_by_the_share_of_right_answers(name):
    """With nan behind the mask; neither the advantages nor the reference are differentiated."""
    more = {} if name == "shaped_k3" else dict(hard=0.25, medium=0.5, weights=(0.5, 2.0, 3.0))
    of_rows = np.broadcast_to(advantages()[:, None], MASK.shape)
    arrays = [np.where(MASK, x, np.nan).astype(np.float32) for x in (LOG_PROBS, REFERENCE, of_rows)]

    def total(log_probs, reference, advantages):
        found = getattr(difficulty, name)(log_probs, reference, MASK, advantages=advantages, group_size=GROUP, **more)
        return jnp.sum(found), found

    of, found = jax.grad(total, argnums=(0, 1, 2), has_aux=True)(*arrays)
    gap = REFERENCE - LOG_PROBS
    expected = np.where(MASK, weights(name)[:, None] * (np.exp(gap) - gap - 1), 0.0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    slope = np.where(MASK, weights(name)[:, None] * (1 - np.exp(gap)), 0.0)
    np.testing.assert_allclose(of[0], slope, rtol=1e-3, atol=1e-5)
    assert not np.asarray(of[1]).any() and not np.asarray(of[2]).any()
