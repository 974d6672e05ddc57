"""control/segments.py: cutting, summing, labelling and pairing, against loops in numpy."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.control import segments
from tests.control.segment_cases import pairs_of


def test_segments_end_with_their_episode():
    rng = np.random.default_rng(1)
    done, x = rng.random((3, 11)) < 0.25, rng.normal(size=(3, 11, 2)).astype(np.float32)
    (found,), mask = segments.cut((jnp.asarray(x),), jnp.asarray(done), length=4)
    assert found.shape == (6, 4, 2) and mask.shape == (6, 4)
    for row, part in itertools.product(range(3), range(2)):
        np.testing.assert_array_equal(found[2 * row + part], x[row, 4 * part : 4 * part + 4])
        alive = True
        for step in range(4):
            assert bool(mask[2 * row + part, step]) == alive
            alive = alive and not done[row, 4 * part + step]
    with pytest.raises(ValueError, match="segments of 12 steps cannot be cut from rows of 11"):
        segments.cut((jnp.asarray(x),), jnp.asarray(done), length=12)


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_segment_sums(discount):
    x, batch = pairs_of()
    expected = [
        [sum(discount**t * v for t, v in enumerate(side) if np.isfinite(v)) for side in pair] for pair in x
    ]
    found = segments.segment_sums(jnp.asarray(x), batch.completion_mask, discount=discount)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_an_annotators_probabilities():
    f = jnp.array([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])
    right = 1 / (1 + math.exp(-3.0))
    np.testing.assert_allclose(segments.preference_probs(f, beta=3.0), [right, 1 - right, 0.5], rtol=1e-6)
    noisy = 0.9 * right + 0.1 * (1 - right)
    found = segments.preference_probs(f, beta=3.0, flip_rate=0.1)
    np.testing.assert_allclose(found, [noisy, 1 - noisy, 0.5], rtol=1e-6)
    np.testing.assert_array_equal(segments.preference_probs(f, beta=math.inf), [1.0, 0.0, 0.5])
    for wrong in (dict(beta=-1.0), dict(flip_rate=1.5), dict(beta=math.nan)):
        with pytest.raises(ValueError, match="must not be negative"):
            segments.preference_probs(f, **wrong)


@pytest.mark.slow
def test_pairs_are_drawn_evenly_and_ordered_by_the_annotator():
    f = jnp.array([0.0, 1.0, 0.5])
    pairs = np.asarray(segments.labelled_pairs(jax.random.key(0), f, count=12_000, beta=2.0))
    assert (pairs[:, 0] != pairs[:, 1]).all()
    for i, j in itertools.combinations(range(3), 2):
        ahead, behind = ((pairs == [a, b]).all(1).mean() for a, b in ((i, j), (j, i)))
        assert abs(ahead + behind - 1 / 3) < 0.02
        expected = 1 / (1 + math.exp(-2.0 * float(f[i] - f[j])))
        assert abs(ahead / (ahead + behind) - expected) < 0.03
    with pytest.raises(ValueError, match="1 segment is no pair"):
        segments.labelled_pairs(jax.random.key(0), f[:1], count=4)
