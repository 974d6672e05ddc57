"""losses/denoising.py against loops in numpy, and against the equations of the papers' own code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.losses import denoising

RNG = np.random.default_rng(0)
ACTIONS, MEANS, OLD = (RNG.normal(size=(3, 4, 2)).astype(np.float32) for _ in range(3))
STD = RNG.uniform(0.05, 0.5, size=(3, 4)).astype(np.float32)


def test_the_normalised_ratio_is_that_of_the_official_code():
    """GRPO-Guard's lines on x' itself: sigma and dt apart, log-probs with their constants, means over coordinates."""
    dt = 0.04
    sigma = STD / np.sqrt(dt)
    start = RNG.normal(size=ACTIONS.shape)  # the pretrained mean, which cancels
    x, mean, old = (start + STD[..., None] * y for y in (ACTIONS, MEANS, OLD))

    def log_prob(mean):
        scale = sigma[..., None] * np.sqrt(dt)
        return (-((x - mean) ** 2) / (2 * scale**2) - np.log(scale) - 0.5 * np.log(2 * np.pi)).mean(-1)

    bias = ((mean - old) ** 2).mean(-1) / (2 * (np.sqrt(dt) * sigma) ** 2)
    expected = np.exp((log_prob(mean) - log_prob(old) + bias) * (np.sqrt(dt) * sigma))
    np.testing.assert_allclose(denoising.normalized_ratio(ACTIONS, MEANS, OLD, STD), expected, rtol=1e-4)


def test_the_plain_log_ratio_has_the_kl_as_its_bias_and_the_normalised_one_has_none():
    shift, noise = np.float32([0.6, -0.2]), RNG.normal(size=(200_000, 2)).astype(np.float32)
    old = np.zeros_like(noise)
    means = old + shift
    plain = denoising.step_log_prob(noise, means) - denoising.step_log_prob(noise, old)
    assert np.mean(plain) == pytest.approx(-0.5 * np.mean(shift**2), abs=3e-3)
    for std in (0.1, 0.5):  # and its spread is that of std times the shift: of x' itself
        normal = jnp.log(denoising.normalized_ratio(noise, means, old, jnp.full(len(noise), std)))
        assert np.mean(normal) == pytest.approx(0.0, abs=2e-3 * std)
        assert np.std(normal) == pytest.approx(std * np.sqrt(np.sum(shift**2)) / 2, rel=0.01)


def test_the_clip_is_ppos():
    ratios, advantages = np.float32([0.5, 0.95, 1.3, 1.3, 0.5]), np.float32([1.0, 1.0, 1.0, -1.0, -1.0])
    expected = [max(-a * r, -a * min(max(r, 0.9), 1.1)) for r, a in zip(ratios, advantages, strict=True)]
    np.testing.assert_allclose(denoising.clipped(ratios, advantages, clip=0.1), expected, rtol=1e-6)


def test_d3po_is_the_dpo_of_a_step_inside_its_clip_and_still_outside():
    gaps, signs = np.float32([[0.05, -0.02], [0.9, 0.0], [0.3, -0.4]]), np.float32([[1, -1], [-1, 1], [0, 0]])

    def loss(gaps):
        return denoising.preferred(gaps, signs, beta=2.0, clip=0.1)

    expected = [
        np.log1p(np.exp(-2.0 * sum(s * np.log(np.clip(np.exp(d), 0.9, 1.1)) for s, d in zip(*row, strict=True))))
        for row in zip(signs, gaps, strict=True)
    ]
    np.testing.assert_allclose(loss(gaps), expected, rtol=1e-5)
    gradient = jax.grad(lambda gaps: jnp.sum(loss(gaps)))(jnp.asarray(gaps))
    assert gradient[0, 0] < 0 < gradient[0, 1] and gradient[1, 0] == 0 and not np.any(gradient[2])
    dpo = np.log1p(np.exp(-2.0 * (gaps * signs).sum(-1)))
    np.testing.assert_allclose(denoising.preferred(gaps, signs, beta=2.0, clip=jnp.inf), dpo, rtol=1e-5)


def test_a_step_that_has_left_its_reference_is_finite_without_a_clip():
    """exp of the gap is 0 in float32: its log is that of a small number."""
    gaps, signs = np.float32([[-200.0, 0.0]]), np.float32([[1.0, -1.0]])
    found = denoising.preferred(gaps, signs, beta=1.0, clip=jnp.inf)
    assert np.isfinite(found).all() and found[0] > 60
    np.testing.assert_allclose(denoising.step_log_prob(np.float32([[1.0, 3.0]]), np.zeros((1, 2), np.float32)), [-2.5])


def test_seppos_sign_is_a_loser_if_the_model_is_better_at_the_winner_and_nothing_flows_through_it():
    errors, ref_errors = np.float32([0.2, 0.5, 0.3]), np.float32([0.4, 0.1, 0.3])
    np.testing.assert_array_equal(denoising.anchored_signs(errors, ref_errors), [1, -1, 0])
    assert not np.any(jax.grad(lambda x: jnp.sum(denoising.anchored_signs(x, ref_errors)))(errors))


def test_seppo_is_diffusion_dpo_for_losers_and_lowers_both_errors_for_winners():
    errors, ref_errors = (RNG.uniform(size=(4, 2)).astype(np.float32) for _ in range(2))
    signs, beta = np.float32([1, -1, 0, 1]), 3.0

    def loss(errors):
        return denoising.semi_policy(errors, ref_errors, signs, beta=beta)

    expected, slopes = [], []
    for (win, drawn), (ref_win, ref_drawn), sign in zip(errors, ref_errors, signs, strict=True):
        inside = -beta * ((win - ref_win) - sign * (drawn - ref_drawn))
        expected.append(-np.log(1.0 / (1.0 + np.exp(-inside))))
        slopes.append(beta / (1.0 + np.exp(inside)) * np.float64([1.0, -sign]))
    np.testing.assert_allclose(loss(errors), expected, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(lambda x: jnp.sum(loss(x)))(errors), slopes, rtol=1e-5, atol=1e-7)


def test_the_error_of_a_prediction_is_that_of_the_noise_itself():
    noise, pretrained, guess = (RNG.normal(size=(3, 4, 2)).astype(np.float32) for _ in range(3))
    gains = RNG.uniform(-2.0, -0.2, size=(3, 4)).astype(np.float32)
    actions, means = (gains[..., None] * (x - pretrained) for x in (noise, guess))
    expected = np.mean((noise - guess) ** 2, axis=-1)
    np.testing.assert_allclose(denoising.prediction_error(actions, means, gains), expected, rtol=1e-4)
