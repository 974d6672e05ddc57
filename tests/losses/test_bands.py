"""losses/policy/bands.py and hinged.py: which tokens take part, by hand, at the edges; the laws; published bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.masked import add
from rl_jax.losses import aggregate, policy
from rl_jax.losses.policy import bands, hinged
from rl_jax.testing.laws import check_surrogate


def gradient(surrogate, ratios, sign, **keywords):
    """dl/dlogp of single tokens with these ratios and the advantage `sign`; all at the old probability .3."""
    old = jnp.full((1, len(ratios)), jnp.log(0.3))
    log_probs, mask = old + jnp.log(jnp.asarray(ratios))[None], jnp.ones((1, len(ratios)), bool)
    advantages = jnp.full(mask.shape, float(sign))
    out = surrogate(log_probs, old, advantages, mask, **keywords)
    found = jax.grad(lambda x: surrogate(x, old, advantages, mask, **keywords).loss.sum())(log_probs)
    np.testing.assert_array_equal(out.clipped_low | out.clipped_high, found == 0)
    return np.asarray(found[0])


RATIOS = [0.3, 0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 2.9, 3.1]


@pytest.mark.parametrize("sign", [1, -1])
def test_two_sides_take_what_is_near(sign):
    inside = np.array([0.8 <= r <= 1.2 for r in RATIOS])
    np.testing.assert_allclose(gradient(bands.rec_two_side, RATIOS, sign), -sign * inside * RATIOS, rtol=1e-5)
    plain = gradient(bands.rec_two_side, RATIOS, sign, importance=False)
    np.testing.assert_allclose(plain, -sign * inside, rtol=1e-6)


@pytest.mark.parametrize(("sign", "far"), [(1, [0.3]), (-1, [3.1])])
def test_a_ring_takes_back_what_has_gone_far(sign, far):
    taken = np.array([0.8 <= r <= 1.2 or r in far for r in RATIOS])
    np.testing.assert_allclose(gradient(bands.rec_ring, RATIOS, sign), -sign * taken, rtol=1e-6)


def test_a_ring_at_the_edges_of_the_band_is_one_side():
    """Only what has moved the way that it is pushed is left out."""
    for sign in (1, -1):
        ring = gradient(bands.rec_ring, RATIOS, sign, outer_low=0.2, outer_high=0.2)
        np.testing.assert_allclose(ring, gradient(policy.rec_one_side, RATIOS, sign), rtol=1e-6)


def test_a_ring_inside_the_band_is_refused():
    with pytest.raises(ValueError, match="outer_low=0.1, outer_high=2.0.*around the band"):
        gradient(bands.rec_ring, [1.0], 1, outer_low=0.1)


@pytest.mark.parametrize(("q", "low", "high"), [(0.9, 0.69 / 0.9, 1.06 / 0.9), (0.01, 0.5, 5.0), (1e-6, 0.5, 10.0)])
def test_the_bounds_of_dcpo_are_the_readmes(q, low, high):
    """Its table: with .16 and .2, q = .9 may go to .69 and 1.06, q = .01 to .005 and .05; the cap is 10."""
    found = bands.dynamic_bounds(jnp.log(q), clip_low=0.16, clip_high=0.2, ratio_max=10.0)
    np.testing.assert_allclose(found, (low, high), rtol=0.012)
    r = np.float64(found[1])
    assert r == 10.0 or abs((r - 1) * r * q - 0.2) < 1e-5


def test_dcpo_clips_where_its_bounds_are():
    low, high = (float(x) for x in bands.dynamic_bounds(jnp.log(0.3), clip_low=0.16, clip_high=0.2, ratio_max=10.0))
    assert low == 0.5 and 1.4 < high < 1.5
    ratios = [low - 0.01, low + 0.01, 1.0, high - 0.01, high + 0.01, 9.9, 10.1]
    up = np.array([r < high for r in ratios])
    down = np.array([low < r < 10 for r in ratios])
    np.testing.assert_allclose(gradient(bands.dcpo, ratios, 1), -np.where(up, ratios, 0), rtol=1e-5)
    np.testing.assert_allclose(gradient(bands.dcpo, ratios, -1), np.where(down, ratios, 0), rtol=1e-5)
    with pytest.raises(ValueError, match="ratio_max=1.0 must be larger than 1"):
        gradient(bands.dcpo, [1.0], 1, ratio_max=1.0)


def test_a_hinge_is_open_inside_and_pulls_outside():
    old, mask = jnp.full((2, 3), -1.0), jnp.asarray([[True, True, True], [True, False, False]])
    advantages = jnp.zeros((2, 3))

    def loss(log_probs, rows=slice(None)):
        out = hinged.hinged(log_probs[rows], old[rows], advantages[rows], mask[rows], delta=0.1, hinge=10.0)
        return aggregate.seq_mean_token_mean(out.loss, mask[rows])

    inside, outside = old - 0.09, old - 0.3
    np.testing.assert_array_equal(jax.grad(lambda x: loss(x).value())(inside), 0.0)
    found = jax.grad(lambda x: loss(x).value())(outside)
    np.testing.assert_allclose(found, np.where(mask, -10.0 * (0.3 - 0.1) / 4, 0.0), rtol=1e-5)  # a mean over tokens
    half = jax.grad(lambda x: 10.0 / 2 * jnp.maximum(jnp.sum(jnp.where(mask, old - x, 0)) / 4 - 0.1, 0) ** 2)(outside)
    np.testing.assert_allclose(found, half, rtol=1e-5)
    out = hinged.hinged(jnp.where(mask, outside, jnp.nan), old, advantages, mask)
    np.testing.assert_allclose(out.ratio, np.where(mask, np.exp(-0.3), 1.0), rtol=1e-5)
    assert not np.any(out.clipped_low | out.clipped_high)
    parts = add(loss(outside, slice(0, 1)), loss(outside, slice(1, 2)))
    np.testing.assert_allclose(parts.value(), loss(outside).value(), rtol=1e-5)  # equal hinges add up


@pytest.mark.slow
def test_what_bounds_and_hinges_obey_the_laws():
    check_surrogate(bands.dcpo)
    check_surrogate(hinged.hinged, needs_advantages=False, except_for=("micro_batches_change_nothing",))
