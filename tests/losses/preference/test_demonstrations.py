"""losses/preference/compare/demonstrations.py: against the conjugate found by search, and against SFT."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import dpo, sft
from rl_jax.core.types import PreferenceBatch, TokenScores
from rl_jax.losses import aggregate
from rl_jax.losses.preference.compare import demonstrations

# The generator f of each divergence, and what the table subtracts from the conjugate's argument so that phi'(0) = 1.
GENERATORS = {
    "pearson": (lambda t: (t - 1) ** 2, 0.0),
    "hellinger": (lambda t: (np.sqrt(t) - 1) ** 2, 0.0),
    "reverse_kl": (lambda t: t * np.log(t), 1.0),
    "jensen_shannon": (lambda t: t * np.log(t) - (t + 1) * np.log((t + 1) / 2), 0.0),
}
X = np.array([-0.45, -0.2, 0.0, 0.3, 1.0, 1.8])


@pytest.mark.parametrize("name", GENERATORS)
def test_phi_is_minus_the_conjugate_at_minus_x(name):
    """f*(u) = sup_t u t - f(t), over a fine grid of t."""
    generator, shift = GENERATORS[name]
    t = np.exp(np.linspace(-12, 8, 400_001))
    conjugate = [np.max((shift - x) * t - generator(t)) for x in X]
    expected = -np.array(conjugate) + (1.0 if name == "reverse_kl" else 0.0)
    scores = np.stack([X, np.full_like(X, 9.0)], axis=1)
    found = demonstrations.imitation(scores, np.ones(scores.shape, bool), None, divergence=name)
    np.testing.assert_allclose(found, -expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", demonstrations.DIVERGENCES)
def test_rewards_far_out_are_finite_and_phi_is_concave(name):
    x = jnp.concatenate([jnp.array([-1e4, -90.0]), jnp.linspace(-6.0, 6.0, 121), jnp.array([200.0])])
    phi = demonstrations.DIVERGENCES[name]
    slopes = jax.vmap(jax.grad(phi))(x)
    assert np.isfinite(phi(x)).all() and np.isfinite(slopes).all()
    assert np.all(np.diff(slopes) <= 1e-6)
    assert math.isclose(jax.grad(phi)(0.0), 1.0, rel_tol=1e-6)


# Where the tangent goes on, the value and the slope of phi there.
FLOORS = {
    "hellinger": (-0.5, -1.0, 4.0),
    "reverse_kl": (-5.0, 1.0 - math.exp(5.0), math.exp(5.0)),
    "jensen_shannon": (-0.5, math.log(2 - math.exp(0.5)), math.exp(0.5) / (2 - math.exp(0.5))),
}


@pytest.mark.parametrize("name", FLOORS)
def test_below_its_floor_phi_is_its_tangent(name):
    floor, value, slope = FLOORS[name]
    below = np.float32(floor - np.array([0.04, 0.45, 3.0]))
    scores = np.stack([below, np.zeros(3, np.float32)], axis=1)
    found = demonstrations.imitation(scores, np.ones((3, 2), bool), None, divergence=name)
    np.testing.assert_allclose(found, -(value + slope * (below - floor)), rtol=1e-5)


def _gradient(divergence, refs, log_probs, mask, beta=0.5):
    here = np.ones(mask.shape[:2], bool)
    batch = PreferenceBatch(None, mask, here, np.zeros(here.shape, np.float32), refs, None, {})
    compare = functools.partial(demonstrations.imitation, divergence=divergence)

    def total(log_probs):
        flat = log_probs.reshape(-1, mask.shape[2])
        return dpo.loss(TokenScores(flat, flat), batch, dpo.Objective(beta=beta, compare=compare))[0].total

    return jax.grad(total)(jnp.asarray(log_probs))


def test_the_total_variation_is_sft_and_so_is_every_other_at_the_reference():
    """beta times the gradient of the cross entropy of the first responses; away from it pearson's weight is 1 - s/2."""
    rng = np.random.default_rng(1)
    log_probs, refs = np.float32(rng.uniform(-2, -0.1, (2, 4, 2, 5)))
    mask = np.arange(5) < rng.integers(1, 6, (4, 2, 1))

    def cross_entropy(x):
        return sft.loss(TokenScores(x[:, 0], x[:, 0]), mask[:, 0], aggregate=aggregate.seq_mean_token_sum)[0].total

    expected = 0.5 * jax.grad(cross_entropy)(jnp.asarray(log_probs))
    np.testing.assert_allclose(_gradient("total_variation", refs, log_probs, mask), expected, rtol=1e-6)
    for name in demonstrations.DIVERGENCES:
        np.testing.assert_allclose(_gradient(name, log_probs, log_probs, mask), expected, rtol=1e-6)
    s = 0.5 * np.sum(np.where(mask, log_probs - refs, 0.0), axis=2)[:, :1, None]
    np.testing.assert_allclose(_gradient("pearson", refs, log_probs, mask), (1 - s / 2) * expected, rtol=1e-5)


def test_an_unknown_divergence_is_refused():
    with pytest.raises(ValueError, match="imitation: divergence 'kl' is none of total_variation, pearson"):
        demonstrations.imitation(jnp.zeros((1, 2)), jnp.ones((1, 2), bool), None, divergence="kl")
    found = demonstrations.imitation(np.full((1, 2), 3.0), np.ones((1, 2), bool), None)  # pearson's, by default
    np.testing.assert_allclose(found, -(3 - 9 / 4), rtol=1e-6)


@pytest.mark.parametrize("name", demonstrations.DIVERGENCES)
def test_a_prompt_without_its_demonstration_has_no_loss_and_no_gradient(name):
    present = jnp.array([[True, False], [False, True]])

    def losses(scores):
        found = demonstrations.imitation(scores, present, None, divergence=name)
        return found.sum(), found

    slope, found = jax.grad(losses, has_aux=True)(jnp.array([[0.5, jnp.nan], [jnp.nan, 0.5]]))
    np.testing.assert_array_equal([found[1], slope[0, 1], *slope[1]], 0.0)
    np.testing.assert_allclose(found[0], -demonstrations.DIVERGENCES[name](jnp.float32(0.5)), rtol=1e-6)
