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


RATIOS = [0.3, 0.39, 0.41, 0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 2.9, 3.1]


@pytest.mark.parametrize("sign", [1, -1])
def test_two_sides_take_what_is_near(sign):
    inside = np.array([0.8 <= r <= 1.2 for r in RATIOS])
    np.testing.assert_allclose(gradient(bands.rec_two_side, RATIOS, sign), -sign * inside * RATIOS, rtol=1e-5)
    plain = gradient(bands.rec_two_side, RATIOS, sign, importance=False)
    np.testing.assert_allclose(plain, -sign * inside, rtol=1e-6)


@pytest.mark.parametrize(("sign", "far"), [(1, [0.3, 0.39]), (-1, [3.1])])
def test_a_ring_takes_back_what_has_gone_far(sign, far):
    taken = np.array([0.8 <= r <= 1.2 or r in far for r in RATIOS])
    np.testing.assert_allclose(gradient(bands.rec_ring, RATIOS, sign), -sign * taken, rtol=1e-6)


def test_a_ring_at_the_edges_of_the_band_is_one_side():
    """Only what has moved the way that it is pushed is left out."""
    for sign in (1, -1):
        ring = gradient(bands.rec_ring, RATIOS, sign, outer_low=0.2, outer_high=0.2)
        np.testing.assert_allclose(ring, gradient(policy.rec_one_side, RATIOS, sign), rtol=1e-6)


def test_the_edges_of_a_ring_belong_to_what_is_pulled_back():
    """M has r <= 1 - outer_low and r >= 1 + outer_high: at equality the token takes part."""
    arrays = jnp.zeros((1, 1)), jnp.ones((1, 1)), jnp.ones((1, 1), bool)
    for move, sign in ((-0.7, 1.0), (1.2, -1.0)):
        log_probs = jnp.full((1, 1), move)
        edge = float(jnp.exp(log_probs)[0, 0])
        outer = dict(outer_low=1.0 - edge) if sign > 0 else dict(outer_high=edge - 1.0)
        out = bands.rec_ring(log_probs, arrays[0], sign * arrays[1], arrays[2], **outer)
        np.testing.assert_allclose(out.loss, -sign * move, rtol=1e-6)
        assert not np.any(out.clipped_low | out.clipped_high)


SURROGATES = [bands.rec_two_side, bands.rec_ring, bands.dcpo, hinged.hinged]


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_only_log_probs_are_differentiated_and_padding_is_not_read(surrogate):
    mask = jnp.asarray([[True, True, True, False], [True, True, False, False]])
    log_probs = jnp.log(jnp.asarray([[0.5, 0.3, 0.9, 0.1], [0.2, 0.6, 0.1, 0.1]]))
    old = jnp.log(jnp.asarray([[0.45, 0.9, 0.3, 0.1], [0.21, 0.1, 0.1, 0.1]]))
    advantages = jnp.asarray([[1.0, -0.5, 0.7, 2.0], [0.0, -1.5, 1.0, 1.0]])
    hidden = [jnp.where(mask, x, jnp.nan) for x in (log_probs, old, advantages)]

    def total(part):
        return lambda *x: jnp.sum(getattr(surrogate(*x, mask), part))

    plain, found = (surrogate(*x, mask) for x in ((log_probs, old, advantages), hidden))
    for one, other in zip(plain, found, strict=True):
        np.testing.assert_allclose(np.where(mask, one, 0), np.where(mask, other, 0), rtol=1e-5)
        assert one.shape == other.shape == mask.shape
    assert not np.asarray(found.loss)[~mask].any() and (np.asarray(found.ratio)[~mask] == 1).all()
    of = jax.grad(total("loss"), argnums=(0, 1, 2))(*hidden)
    assert np.asarray(of[0])[mask].any() and not np.asarray(of[0])[~mask].any()
    assert not np.asarray(of[1]).any() and not np.asarray(of[2]).any()
    assert not np.asarray(jax.grad(total("ratio"))(*hidden)).any()
    # A token without an advantage is not clipped, wherever its ratio is.
    still = surrogate(log_probs, old, jnp.zeros_like(old), mask)
    assert not np.any(still.clipped_low | still.clipped_high)


def test_dcpo_of_a_likely_token_and_of_ratios_beyond_float32():
    old, mask = jnp.log(jnp.full((1, 2), 0.9)), jnp.ones((1, 2), bool)
    low = 0.5 + 0.5 * np.sqrt(1 - 4 * 0.16 / 0.9)
    out = bands.dcpo(jnp.log(jnp.asarray([[0.9 * low - 2e-3, 0.9 * low + 2e-3]])), old, -jnp.ones((1, 2)), mask)
    np.testing.assert_allclose(out.loss, [[low, low + 2e-3 / 0.9]], rtol=1e-5)
    np.testing.assert_array_equal(out.clipped_low, [[True, False]])

    def loss(advantages):
        return lambda x: jnp.sum(bands.dcpo(x, old - 200.0, advantages, mask, ratio_max=1.5).loss)

    for size in (0.5, -0.5):
        value, slope = jax.jit(jax.value_and_grad(loss(jnp.full((1, 2), size))))(old)
        np.testing.assert_allclose(value, -size * 2 * 1.5, rtol=1e-6)
        np.testing.assert_array_equal(slope, 0.0)


def test_the_hinge_of_disco_by_a_loop():
    """-A logp and the pull of the mean KL, rows of 3, 1 and no tokens; 1e-4 and 1e3 are the published numbers."""
    mask = np.arange(3) < np.array([3, 1, 0])[:, None]
    log_probs = np.float32(np.log([[0.5, 0.3, 0.9], [0.2, 0.6, 0.1], [0.3, 0.3, 0.3]]))
    old = log_probs + np.float32([[0.3, -0.1, 0.2], [0.4, 0, 0], [9, 9, 9]])
    advantages = np.float32([[1.0, -0.5, 0.7], [-1.5, 1.0, 1.0], [1.0, 1.0, 1.0]])
    d = np.where(mask, old - log_probs, 0.0)
    for keywords, delta, hinge in (({}, 1e-4, 1e3), (dict(delta=0.05, hinge=3.0), 0.05, 3.0)):
        excess = hinge * max(d.sum() / 4 - delta, 0.0)
        found = hinged.hinged(log_probs, old, advantages, mask, **keywords)
        lengths = np.array([3, 1, 0])[:, None]
        expected = np.where(mask, -advantages * log_probs + excess * d * lengths * 2 / 4, 0.0)
        np.testing.assert_allclose(found.loss, expected, rtol=1e-5, atol=1e-6)
    # The hinge opens at 1e-4 exactly: 1.05e-4 nats per token is beyond it.
    just = hinged.hinged(old[:1] - np.float32(1.05e-4), old[:1], 0 * old[:1], mask[:1])
    np.testing.assert_allclose(just.loss, 1e3 * 5e-6 * 1.05e-4 * np.ones((1, 3)), rtol=0.05)
    empty = hinged.hinged(log_probs, old, advantages, np.zeros((3, 3), bool))
    np.testing.assert_array_equal(empty.loss, 0.0)


def test_a_ring_inside_the_band_is_refused():
    with pytest.raises(ValueError, match="outer_low=0.6, outer_high=0.1.*around the band"):
        gradient(bands.rec_ring, [1.0], 1, outer_high=0.1)
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
