"""control/sum_tree.py: draws against the cumulative law by numpy, and small weights that a running sum loses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.control import sum_tree

draw = jax.jit(sum_tree.draw_stratified, static_argnums=2)


@pytest.mark.parametrize("count", [1, 12, 32, 33, 1024, 5000])
@pytest.mark.parametrize("size", [1, 256, 5000])
def test_each_part_of_the_unit_interval_has_one_draw(count, size):
    """Up to any weight, the number of draws is N times the share of the weights, to one more or less."""
    rng = np.random.default_rng(count)
    weights = np.where(rng.random(count) < 0.3, 0.0, rng.exponential(size=count) ** 3).astype(np.float32)
    weights[0] = 1.0
    places, total = draw(weights, jax.random.key(size), size)
    law = np.cumsum(weights, dtype=np.float64)
    np.testing.assert_allclose(total, law[-1], rtol=1e-5)
    found = np.bincount(places, minlength=count)
    assert found.shape == (count,) and not found[weights == 0].any() and (np.diff(places) >= 0).all()
    assert np.abs(np.cumsum(found) - size * law / law[-1]).max() < 1.0 + size * 1e-5


def test_draws_of_many_batches_are_the_law_of_each_weight():
    weights = np.random.default_rng(0).uniform(size=40).astype(np.float32)
    places = jax.jit(jax.vmap(lambda key: sum_tree.draw_stratified(weights, key, 4)[0]))(
        jax.random.split(jax.random.key(0), 20_000)
    )
    shares, found = weights / weights.sum(), np.bincount(np.asarray(places).ravel(), minlength=40) / 80_000
    assert np.abs(found - shares).max() < 4.5 * np.sqrt(shares.max() / 80_000)


def million():
    """Priorities of 1,000,000 steps, 30 % of which are new."""
    return np.where(np.random.default_rng(0).random(1_000_000) < 0.3, 1.0, 0.0158).astype(np.float32)


def lost_in_one_sum(weights):
    """The places whose weight adds nothing to one running sum, as it was drawn from before."""
    return np.flatnonzero(np.diff(jnp.cumsum(weights)) == 0.0) + 1


def test_no_small_weight_is_lost_in_a_sum():
    """Each weight and each sum of them has its place in the running sum of its row."""
    weights = million()
    assert len(lost_in_one_sum(weights)) > 10_000
    rows = [np.asarray(x) for x in sum_tree.levels(weights)]
    assert [len(x) for x in rows] == [31_250, 977, 31, 1]
    for level in rows:
        room = np.diff(np.cumsum(level, axis=1), axis=1, prepend=np.float32(0.0))
        np.testing.assert_allclose(room, level, rtol=1e-3)


def test_what_one_running_sum_loses_is_drawn():
    weights, size = million(), 100_000
    lost = lost_in_one_sum(weights)
    places = np.asarray(draw(weights, jax.random.key(0), size)[0])
    expected = size * weights[lost].sum(dtype=np.float64) / weights.sum(dtype=np.float64)
    assert expected > 100 and abs(np.isin(places, lost).sum() - expected) < 5 * np.sqrt(expected)
