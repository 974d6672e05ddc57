"""selection/rows.py: PF-PPO's filters of rows, by counting draws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.binding import public_functions
from rl_jax.selection import rows

REWARDS = jnp.array([0.0, 1.0, 2.0, 3.0, -2.0, 1.0, 1.0, 0.0])  # two groups of four
GROUP = 4


def shares(name, **keywords):
    """float [8, 8]: how often place i holds row j."""
    fn = functools.partial(getattr(rows, name), group_size=GROUP, **keywords)
    drawn = jax.jit(jax.vmap(lambda key: fn(REWARDS, key)))(jax.random.split(jax.random.key(0), 4000))
    assert drawn.shape == (4000, 8) and drawn.dtype == jnp.int32
    return np.stack([(np.asarray(drawn) == j).mean(axis=0) for j in range(8)], axis=1)


@pytest.mark.parametrize(
    ("name", "keywords", "weights"),
    [
        ("power", {}, [[0, 1, 4, 9], [4, 1, 1, 0]]),
        ("power", {"exponent": 1.0}, [[0, 1, 2, 3], [2, 1, 1, 0]]),
        ("power", {"exponent": 0.0}, [[1] * 4, [1] * 4]),
        ("best_worst", {}, [[1, 0, 0, 1], [1, 1, 1, 0]]),
        ("best_random", {}, [[1, 1, 1, 4], [1, 4, 4, 1]]),
    ],
)
def test_rows_of_a_group_are_drawn_by_their_weights(name, keywords, weights):
    expected = np.zeros((8, 8))
    for group, values in enumerate(np.array(weights, float)):
        part = slice(GROUP * group, GROUP * (group + 1))
        expected[part, part] = values / values.sum()
    np.testing.assert_allclose(shares(name, **keywords), expected, atol=0.035)


def test_the_batch_may_be_drawn_from_as_a_whole():
    found = shares("best_worst", per_group=False)
    np.testing.assert_allclose(found[:, [3, 4]], 0.5, atol=0.035)
    assert not np.delete(found, [3, 4], axis=1).any()


@pytest.mark.parametrize("name", [n for n in public_functions(rows)])
def test_rows_that_form_no_groups_are_refused(name):
    with pytest.raises(ValueError, match="8 rows do not divide into groups of 3"):
        getattr(rows, name)(REWARDS, jax.random.key(0), group_size=3)


def test_every_weight_has_its_1e_8():
    """Weights of that size themselves: the draws are those of a categorical with log(w + 1e-8), by the same key."""
    weights = jnp.asarray(np.random.default_rng(0).uniform(0, 2e-8, 256), jnp.float32)
    found = rows.power(weights, jax.random.key(0), group_size=256, exponent=1.0)
    drawn = {
        eps: jax.random.categorical(jax.random.key(0), jnp.log(weights + eps)[None, None], axis=-1, shape=(1, 256))[0]
        for eps in (1e-8, 1.1e-8)
    }
    np.testing.assert_array_equal(found, drawn[1e-8])
    assert (drawn[1e-8] != drawn[1.1e-8]).any()


def test_the_best_rows_have_verls_weights():
    """.4 and .1: the draws of a categorical with these weights, by the same key; not those of .44, or of .11."""
    rewards = jnp.asarray(np.arange(256) % 5 == 0, jnp.float32)
    found = rows.best_random(rewards, jax.random.key(0), group_size=256)

    def drawn(best, others):
        logits = jnp.log(jnp.where(rewards > 0, best, others) + 1e-8)[None, None]
        return jax.random.categorical(jax.random.key(0), logits, axis=-1, shape=(1, 256))[0]

    np.testing.assert_array_equal(found, drawn(0.4, 0.1))
    assert (drawn(0.44, 0.1) != found).any() and (drawn(0.4, 0.11) != found).any()
