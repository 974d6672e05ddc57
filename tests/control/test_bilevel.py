"""control/bilevel.py against finite differences, and what BARFI and PARL make of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.control import bilevel


def test_a_quadratic_against_its_solution():
    """L = (theta - 3 phi)^2 / 2 + theta^2 / 2, J = theta^2 + phi: theta* = 1.5 phi, dJ / dphi = 4.5 phi + 1."""

    def inner(theta, phi):
        return 0.5 * jnp.sum((theta - 3.0 * phi) ** 2 + theta**2)

    def outer(theta, phi):
        return jnp.sum(theta**2) + jnp.sum(phi)

    phi = jnp.array([0.7])
    for method in ("cg", "neumann"):
        found = bilevel.hypergradient(outer, inner, 1.5 * phi, phi, method=method, rate=0.3, iterations=60)
        np.testing.assert_allclose(found, 4.5 * phi + 1.0, rtol=1e-4)
    rough = bilevel.hypergradient(outer, inner, 1.5 * phi, phi, method="identity", rate=0.5)
    np.testing.assert_allclose(rough, 4.5 * phi + 1.0, rtol=1e-4)  # the curvature is 2: one over it is exact here
    with pytest.raises(ValueError, match="method='newton' is none of"):
        bilevel.hypergradient(outer, inner, phi, phi, method="newton")


PRIMARY = jnp.array([0.0, 0.3, 1.0])


def barfi(auxiliary):
    inner_of = bilevel.soft_bandit(PRIMARY, entropy_coef=0.5)

    def inner(theta, phi):
        return inner_of(theta, bilevel.mixed_reward(phi, PRIMARY, auxiliary))

    def outer(theta, phi):
        return -jax.nn.softmax(theta) @ PRIMARY + 0.0 * phi[0]

    return inner, outer


def test_the_hypergradient_of_a_policy_against_finite_differences():
    inner, outer = barfi(jnp.array([1.0, 0.0, -0.5]))
    phi = jnp.array([1.0, 0.4])
    best = jax.jit(lambda phi: bilevel.solved(inner, jnp.zeros(3), phi, rate=2.0, steps=4000))
    found = jax.jit(lambda t, p: bilevel.hypergradient(outer, inner, t, p))(best(phi), phi)
    eps = 1e-2
    expected = [
        float(outer(best(phi + eps * e), phi) - outer(best(phi - eps * e), phi)) / (2 * eps)
        for e in np.eye(2, dtype=np.float32)
    ]
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=1e-4)
    without = jax.grad(outer, argnums=1)(best(phi), phi)
    assert abs(float(without[1]) - expected[1]) > 0.05  # the direct part alone says nothing


def descended(auxiliary, phi, steps=150):
    inner, outer = barfi(auxiliary)

    def step(carry, _):
        theta, phi = carry
        theta = bilevel.solved(inner, theta, phi, rate=1.0, steps=30)
        return (theta, phi - 0.3 * bilevel.hypergradient(outer, inner, theta, phi) * jnp.array([0.0, 1.0])), None

    return jax.jit(lambda: jax.lax.scan(step, (jnp.zeros(3), phi), None, steps)[0])()


def test_barfi_turns_an_adversarial_term_round_and_an_equal_one_changes_nothing():
    """The weight of a term that pays the worst arm falls through 0; one equal to r_p leaves the order of the arms."""
    theta, phi = descended(1.0 - PRIMARY, jnp.array([1.0, 2.0]))
    before = jax.nn.softmax((PRIMARY + 2.0 * (1.0 - PRIMARY)) / 0.5)
    assert float(phi[1]) < 0.1 and int(jnp.argmax(theta)) == 2 and int(jnp.argmax(before)) == 0
    theta, _ = descended(PRIMARY, jnp.array([1.0, 0.0]), steps=3)
    assert int(jnp.argmax(theta)) == 2


def test_parl_has_a_term_for_the_policy_that_its_reward_has_trained():
    labels = jax.nn.sigmoid(2.0 * (PRIMARY[:, None] - PRIMARY[None]))
    outer, inner = bilevel.preference_outer(labels), bilevel.soft_bandit(PRIMARY, entropy_coef=0.5)
    rewards = jnp.array([0.5, -0.2, 0.1])
    best = jax.jit(lambda r: bilevel.solved(inner, jnp.zeros(3), r, rate=2.0, steps=4000))
    found = bilevel.hypergradient(outer, inner, best(rewards), rewards)
    eps = 1e-2
    expected = np.array(
        [
            float(outer(best(rewards + eps * e), rewards + eps * e) - outer(best(rewards - eps * e), rewards - eps * e))
            / (2 * eps)
            for e in np.eye(3, dtype=np.float32)
        ]
    )
    np.testing.assert_allclose(found, expected, rtol=0.03, atol=1e-3)
    direct = np.asarray(jax.grad(outer, argnums=1)(best(rewards), rewards))
    assert np.abs(direct - expected).max() > 0.005
