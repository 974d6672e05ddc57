"""PAPO's terms beside torch, both signs of the gap, and what a corrupted prompt hides."""

import jax
import jax.numpy as jnp
import numpy as np
import torch

from experiments.parts import perception as program
from rl_jax.core.types import TokenScores
from rl_jax.losses import perception

MASK = np.array([[True, True, True, False], [True, True, False, False]])
LOG_PROBS = np.array([[-0.5, -2.0, -1.0, np.nan], [-0.1, -30.0, np.nan, np.nan]], np.float32)
CORRUPTED = np.array([[-1.5, -1.0, -1.0, np.nan], [-26.0, -2.0, np.nan, np.nan]], np.float32)
ENTROPY = np.abs(np.sin(np.arange(8.0, dtype=np.float32))).reshape(2, 4)
COEFS = dict(kl_coef=0.02, entropy_coef=0.05, corrupted_entropy_coef=0.03)


def terms(log_probs, entropy, corrupted, corrupted_entropy):
    scores, other = TokenScores(log_probs, entropy), TokenScores(corrupted, corrupted_entropy)
    return jnp.sum(perception.perception_terms(scores, other, jnp.array(MASK), **COEFS))


def test_the_terms_and_their_gradients_are_those_of_the_equation():
    """The gap is positive, negative, 0 and beyond the bounds on both sides; the corrupted log-probs are constants.

    The KL is compute_kl(log_probs, aug_log_probs, "low_var_kl") of MikeWangWZHL/PAPO.
    """
    arrays = (LOG_PROBS, ENTROPY, CORRUPTED, ENTROPY + 1)
    value, gradients = jax.value_and_grad(terms, argnums=(0, 1, 2, 3))(*map(jnp.asarray, arrays))
    x, h, y, g = (torch.tensor(np.where(MASK, a, 0.0), dtype=torch.float64, requires_grad=True) for a in arrays)
    mask, gap = torch.tensor(MASK), torch.clamp(y.detach() - x, -20, 20)
    kl = torch.clamp(torch.exp(gap) - gap - 1, -10, 10)
    total = ((0.05 * h + 0.03 * g - 0.02 * kl) * mask).sum()
    total.backward()
    np.testing.assert_allclose(value, total.item(), rtol=1e-5)
    for found, expected in zip((gradients[0], gradients[1], gradients[3]), (x, h, g), strict=True):
        np.testing.assert_allclose(found, expected.grad, rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(gradients[2], 0.0)


def test_an_answer_that_does_not_depend_on_the_prompt_gains_nothing():
    kl = perception.perception_kl(jnp.asarray(CORRUPTED), jnp.asarray(CORRUPTED), jnp.array(MASK))
    np.testing.assert_array_equal(kl, 0.0)


def test_the_published_bounds_are_20_of_the_gap_and_10_of_the_kl():
    gaps = np.float32([[2.5, -1.0, 21.0, 30.0, 40.0]])
    ours, mask = np.zeros_like(gaps), np.ones((1, 5), bool)
    kl = np.exp(-np.clip(gaps, -20, 20)) + np.clip(gaps, -20, 20) - 1
    found = perception.perception_kl(ours, -gaps, mask, most=1e9)
    np.testing.assert_allclose(found, kl, rtol=1e-4)
    np.testing.assert_allclose(perception.perception_kl(ours, -gaps, mask), np.minimum(kl, 10), rtol=1e-4)
    short = perception.perception_kl(ours, -gaps, mask, limit=2.0)
    np.testing.assert_allclose(short, np.exp(-np.clip(gaps, -2, 2)) + np.clip(gaps, -2, 2) - 1, rtol=1e-4)
    scores = TokenScores(ours, ours + 3.0)  # no weight of an entropy by default
    alone = perception.perception_terms(scores, TokenScores(-gaps, ours + 5.0), mask, kl_coef=0.5)
    np.testing.assert_allclose(alone, -0.5 * np.minimum(kl, 10), rtol=1e-4)
    hidden = [np.where(MASK, x, np.nan) for x in (LOG_PROBS, ENTROPY, CORRUPTED, ENTROPY + 1)]
    found, plain = (jax.grad(terms, argnums=(0, 1, 3))(*x) for x in (hidden, (LOG_PROBS, ENTROPY, CORRUPTED, ENTROPY)))
    for one, other in zip(found, plain, strict=True):
        np.testing.assert_array_equal(one, other)


def test_its_mean_over_the_policys_samples_is_the_kl():
    """E_pi[exp(-d) + d - 1] = sum pi log(pi / other), over all tokens of a vocabulary."""
    ours, other = (jax.nn.log_softmax(jnp.asarray(np.random.default_rng(s).normal(size=(1, 6)))) for s in (0, 1))
    found = jnp.sum(jnp.exp(ours) * perception.perception_kl(ours, other, jnp.ones((1, 6), bool)))
    np.testing.assert_allclose(found, jnp.sum(jnp.exp(ours) * (ours - other)), rtol=1e-5)


def test_only_the_inside_of_the_prompt_is_hidden():
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 9, (200, 12)).astype(np.int32)
    segments = np.ones_like(tokens)
    segments[:, :3] = 0  # padding on the left
    found = program.corrupted(tokens, segments, 8, share=0.6, blank=0, seed=[0, 1])
    changed = found != tokens
    assert not changed[:, :4].any() and not changed[:, 8:].any() and (found[changed] == 0).all()
    np.testing.assert_allclose(changed[:, 4:8].mean(), 0.6, atol=0.05)
    again = program.corrupted(tokens, segments, 8, share=0.6, blank=0, seed=[0, 2])
    assert (again != found).any()
