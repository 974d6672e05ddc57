"""losses/preference/score_maps.py, and the small slots beside it: scales, offsets, weights."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.losses.preference import offsets, prompt_weights, scales, score_maps

partial = functools.partial
U = np.array([[-3.0, -0.7, -0.2], [0.0, 0.4, 2.0]])


def _map(fn, u):
    """(phi(u), phi'(u)) in float64 of [1, K], element by element."""
    with jax.enable_x64(True):
        u = jnp.asarray(np.reshape(u, (1, -1)), jnp.float64)
        return np.asarray(fn(u))[0], np.asarray(jax.grad(lambda u: fn(u).sum())(u))[0]


def test_log_odds_on_both_sides_of_its_branch():
    u = np.array([-1e-6, -1e-3, -0.69, -math.log(2) + 1e-9, -math.log(2) - 1e-9, -0.7, -5.0, -40.0])
    value, slope = _map(score_maps.log_odds, u)
    np.testing.assert_allclose(value, [x - math.log(-math.expm1(x)) for x in u], rtol=1e-12, atol=4e-16)
    np.testing.assert_allclose(slope, [-1 / math.expm1(x) for x in u], rtol=1e-9)


def test_log_odds_in_float32_and_at_certainty():
    """1 - exp(u) keeps three digits of u = -1e-6 in float32, if that; and probability 1 is no nan."""
    u = jnp.array([[-1e-6, -1e-4, -30.0]], jnp.float32)
    expected = [[x - math.log(-math.expm1(x)) for x in np.asarray(u, np.float64)[0]]]
    np.testing.assert_allclose(score_maps.log_odds(u), expected, rtol=2e-6)
    certain = jnp.array([[0.0, 0.1]], jnp.float32)
    value, slope = score_maps.log_odds(certain), jax.grad(lambda u: score_maps.log_odds(u).sum())(certain)
    np.testing.assert_allclose(value, [[math.log(1e7)] * 2], rtol=1e-5)
    np.testing.assert_array_equal(slope, [[0.0, 0.0]])


@pytest.mark.parametrize("old", [0.3, 0.5, 1.0])
def test_alpha_counts_down_from_one(old):
    """alpha_divergence(1 - a) is the paper's (1 - t^-a) / a with slope t^-a; and so is alpha_reward(a)."""
    t = np.exp(U.ravel())
    for fn in (partial(score_maps.alpha_divergence, alpha=1 - old), partial(score_maps.alpha_reward, alpha=old)):
        value, slope = _map(fn, U)
        np.testing.assert_allclose(value, (1 - t**-old) / old, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(slope, t**-old, rtol=1e-12)


def test_the_other_divergences():
    t = np.exp(U.ravel())
    value, slope = _map(score_maps.forward_kl, U)
    np.testing.assert_allclose(value, 1 - 1 / t, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(slope, 1 / t, rtol=1e-12)
    value, slope = _map(score_maps.jensen_shannon, U)
    np.testing.assert_allclose(value, np.log(2 * t / (1 + t)), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(slope, 1 / (1 + t), rtol=1e-12)


@pytest.mark.parametrize(
    "fn", [score_maps.forward_kl, score_maps.jensen_shannon, score_maps.alpha_divergence, score_maps.alpha_reward]
)
def test_a_response_that_became_impossible_overflows_nothing(fn):
    u = jnp.array([[-2000.0, -200.0, 2000.0]], jnp.float32)
    assert np.isfinite(fn(u)).all() and np.isfinite(jax.grad(lambda u: fn(u).sum())(u)).all()


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize(
    "fn",
    [
        score_maps.forward_kl,
        score_maps.alpha_divergence,
        partial(score_maps.alpha_divergence, alpha=3.0),
        score_maps.alpha_reward,
        score_maps.log_odds,
    ],
)
def test_half_precision_overflows_nothing(fn, dtype):
    u = jnp.array([[-2000.0, -20.0, -0.5, 0.0, 0.5, 2000.0]], dtype)
    value, slope = jax.jit(fn)(u), jax.jit(jax.grad(lambda u: fn(u).sum()))(u)
    assert value.dtype == slope.dtype == dtype and np.isfinite(value).all() and np.isfinite(slope).all()
    np.testing.assert_allclose(value[0, 2], fn(jnp.array([[-0.5]]))[0, 0], rtol=0.02)


def test_a_float16_exponential_ends_at_an_eighth_of_the_largest_number():
    u = jnp.array([[-2000.0]], jnp.float16)
    np.testing.assert_allclose(score_maps.forward_kl(u), 1 - 65504 / 8, rtol=0.01)
    np.testing.assert_allclose(score_maps.alpha_reward(u, alpha=0.25), -65504 / 8, rtol=0.01)


def test_an_exponential_ends_at_80():
    """TRL's bound: 1 - exp(80) from there on, without a slope."""
    value, slope = _map(score_maps.forward_kl, [-79.5, -80.5, -1000.0])
    np.testing.assert_allclose(value, 1 - np.exp([79.5, 80.0, 80.0]), rtol=1e-9)
    np.testing.assert_allclose(slope, [np.exp(79.5), 0.0, 0.0], rtol=1e-9)


def test_positive_looks_at_a_chosen_response_that_fell():
    with jax.enable_x64(True):
        u = jnp.asarray([[-0.5, -0.5], [0.5, -0.5], [0.0, 1.0]])
        fn = partial(score_maps.positive, penalty=4.0)
        value, slope = fn(u), jax.grad(lambda u: fn(u).sum())(u)
    np.testing.assert_allclose(value, [[-0.5 - 4 * 0.5, -0.5], [0.5, -0.5], [0.0, 1.0]])
    np.testing.assert_allclose(slope, [[5.0, 1.0], [1.0, 1.0], [1.0, 1.0]])


def test_biased_and_clipped():
    np.testing.assert_allclose(score_maps.biased(jnp.asarray(U, jnp.float32), bias=0.5), U * [1, 0.5, 0.5], rtol=1e-6)
    value, slope = _map(partial(score_maps.clipped, epsilon=0.3), [-1.0, -0.3, 0.0, 0.2, 0.3])
    np.testing.assert_allclose(value, [math.log(0.7), -0.3, 0.0, 0.2, math.log(1.3)], rtol=1e-12)
    np.testing.assert_array_equal(slope, [0, 1, 1, 1, 0])
    with pytest.raises(ValueError, match=r"bias must be in \(0, 1\]"):
        score_maps.biased(jnp.zeros((1, 2)), bias=0.0)


def test_token_level_adds_the_sequence_kl():
    kl = jnp.asarray([[1.0, 2.0, 3.0], [0.5, 0.0, 1.0]])
    u = jnp.asarray(U, jnp.float32)
    found = score_maps.token_level(u, sequence_kl=kl, coef=0.25)
    np.testing.assert_allclose(found, U + 0.25 * np.asarray(kl), rtol=1e-6)


def test_common_length_counts_tokens_and_not_columns():
    """Of [N, K, C] with a hole, and with a shorter response that is absent."""
    mask = np.array([[[1, 0, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]], [[1, 1, 1, 0, 0]] * 3], bool)
    present = np.array([[True, True, False], [True, True, True]])
    found = score_maps.common_length(jnp.asarray(mask), present=jnp.asarray(present), alpha=0.5)
    np.testing.assert_array_equal(np.where(mask, found, 0)[0], [[1, 0, 1, 0.5, 0.5], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])
    np.testing.assert_array_equal(np.where(mask, found, 0)[1], mask[1].astype(float))
    with pytest.raises(AssertionError):  # it would broadcast
        score_maps.common_length(jnp.asarray(mask), present=jnp.asarray(present[:1]))


def test_scales():
    assert scales.constant(0.3) == 0.3
    np.testing.assert_array_equal(scales.batch_adapted(0.3, batch_beta=jnp.full(2, 0.75)), [0.75, 0.75])
    rewards = jnp.asarray([[2.0, 1.0], [1.0, 1.0], [1.0, 2.0], [90.0, 0.0]])
    expected = [0.3 * (1 + 0.6 * (1 - math.exp(-0.8))), 0.3, 0.3, 0.3 * 1.6]
    np.testing.assert_allclose(scales.reward_adapted(0.3, rewards=rewards, weight=0.6, rate=0.8), expected, rtol=1e-6)
    assert scales.objective_share(0.3, weight=0.5) == 0.6
    for weight in (0.0, 1.5):
        with pytest.raises(ValueError, match=r"weight must be in \(0, 1\]"):
            scales.objective_share(0.3, weight=weight)


def test_offsets():
    present = jnp.ones((2, 3), bool)
    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(offsets.none(present), np.zeros((2, 3)))
    np.testing.assert_array_equal(offsets.target_margin(present, margin=0.4), [[np.float32(-0.4), 0, 0]] * 2)
    np.testing.assert_allclose(offsets.length(present, lengths=x, alpha=0.1), 0.1 * x, rtol=1e-6)
    np.testing.assert_allclose(offsets.reward_gap(present, rewards=x, eta=2.0), -2 * x)
    # ODPO: a pair that is only ordered has no margin; one of equal rewards wants no difference at all.
    graded = np.float32([[1, 0], [3, 1], [2, 2]])
    margins = offsets.log_reward_gap(np.ones((3, 2), bool), rewards=graded)
    np.testing.assert_allclose(margins[:2], [[0, 0], [-np.log(2), 0]], rtol=1e-6)
    assert np.isfinite(margins).all() and margins[2, 0] > 80
    of_three = offsets.log_reward_gap(np.ones((1, 3), bool), rewards=np.float32([[4, 1, -2]]), alpha=0.5)
    np.testing.assert_allclose(of_three, [[-0.5 * np.log(3), 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(offsets.other_objectives(present, other_rewards=x, weight=0.25), -4 * x)
    np.testing.assert_array_equal(offsets.given(present, offsets=x), x)


def test_weights():
    losses, x = jnp.asarray([1.0, 2.0]), jnp.asarray([[0.5, 0.5], [3.0, 0.25]])
    present = jnp.asarray([[True, True], [True, False]])
    np.testing.assert_array_equal(prompt_weights.uniform(losses), [1, 1])
    np.testing.assert_array_equal(prompt_weights.constant(losses, value=0.25), [0.25, 0.25])
    wpo = partial(prompt_weights.policy_likelihood, losses, response_weights=x, present=present)
    np.testing.assert_allclose(wpo(), [0.25, 3.0])
    np.testing.assert_allclose(wpo(max_weight=1.0), [0.25, 1.0])
    np.testing.assert_array_equal(prompt_weights.kept(losses, kept=jnp.asarray([True, False])), [1.0, 0.0])
    np.testing.assert_array_equal(prompt_weights.given(losses, prompt_weights=x[:, 0]), [0.5, 3.0])


def test_what_comes_from_the_data_is_not_differentiated():
    x, present = np.float32([[2.0, 1.0], [1.5, 0.25]]), np.ones((2, 2), bool)
    row = np.float32([0.5, 2.0])
    functions = [
        (lambda y: offsets.reward_gap(present, rewards=y), x),
        (lambda y: offsets.log_reward_gap(present, rewards=y), x),
        (lambda y: offsets.other_objectives(present, other_rewards=y), x),
        (lambda y: offsets.given(present, offsets=y), x),
        (lambda y: scales.batch_adapted(0.3, batch_beta=y), row),
        (lambda y: scales.reward_adapted(0.3, rewards=y), x),
    ]
    for number, (fn, values) in enumerate(functions):
        found = jax.grad(lambda y, fn=fn: jnp.sum(fn(y) * 1.0))(values)
        assert not np.asarray(found).any(), number
    u, kl = np.float32(U), np.float32([[1.0, 2.0, 3.0], [0.5, 0.0, 1.0]])
    for keywords, first in (({}, 0.0), (dict(stop_chosen=False), 0.5)):
        slope = jax.grad(lambda y, k=keywords: score_maps.token_level(u, sequence_kl=y, **k).sum())(kl)
        np.testing.assert_array_equal(slope, [[first, 0.5, 0.5]] * 2)


def test_the_ends_of_shares_and_what_is_absent():
    u = np.float32([[1.0, 2.0]])
    np.testing.assert_array_equal(score_maps.biased(u, bias=1.0), u)
    assert scales.objective_share(0.3, weight=1.0) == 0.3
    for refused in (lambda: score_maps.biased(u, bias=1.05), lambda: scales.objective_share(0.3, weight=1.05)):
        with pytest.raises(ValueError, match=r"in \(0, 1\], got 1.05"):
            refused()
    # An absent response has the reward 0, whatever stands there; of one response there is no margin.
    found = offsets.log_reward_gap(np.bool_([[True, False]]), rewards=np.float32([[np.e, np.nan]]))
    np.testing.assert_allclose(found, [[-1.0, 0.0]], rtol=1e-6)
    with pytest.raises(AssertionError):
        offsets.log_reward_gap(np.ones((1, 1), bool), rewards=np.ones((1, 1), np.float32))
    mask = np.bool_([[[0, 1, 0, 1, 1]]])  # positions on the mask: 0, 1 and 2
    found = np.where(mask, score_maps.discounted(mask, discount=0.5), 0)
    np.testing.assert_array_equal(found, [[[0, 1, 0, 0.5, 0.25]]])
    np.testing.assert_array_equal(score_maps.discounted(mask), np.ones((1, 1, 5)))
    np.testing.assert_array_equal(score_maps.uniform(mask), np.ones((1, 1, 5)))
