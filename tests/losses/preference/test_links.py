"""losses/preference/links.py: values and both sides' gradients against plain Python, optima, and far out."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.losses.preference import links
from tests.numpy_loops import preference as reference

partial = functools.partial
sigmoid = reference.sigmoid
X = np.array([-30.0, -4.0, -1.5, -0.3, -0.02, 0.0, 0.02, 0.3, 0.9, 2.5, 4.0, 30.0])
P = np.linspace(0.0, 1.0, len(X))

# name -> (keywords, value of x, derivative at x, or of x and the label's probability)
LINKS = {
    "logistic": ({"label_smoothing": 0.2}, lambda x: reference.logistic(x, 0.8), lambda x: sigmoid(x) - 0.8),
    "robust": (
        {"flip_rate": 0.2},
        lambda x: reference.rdpo(x, 0.2),
        lambda x: -(sigmoid(-x) + 0.2 / (1 - 0.4)),
    ),
    "hinge": ({"margin": 0.8}, lambda x: max(0.0, 0.8 - x), lambda x: -1.0 if x < 0.8 else 0.0),
    "square": ({"target": 1.5}, lambda x: (x - 1.5) ** 2, lambda x: 2 * (x - 1.5)),
    "exo": (
        {"label_smoothing": 0.1},
        lambda x: reference.exo(x, 0.1),
        lambda x: sigmoid(x) * sigmoid(-x) * (x - math.log(9)),
    ),
    "saturating": ({}, lambda x: sigmoid(-x), lambda x: -sigmoid(x) * sigmoid(-x)),
    "discopop": (
        {"temperature": 0.5},
        lambda x: reference.discopop(x, 0.5),
        lambda x: (
            sigmoid(2 * x) * sigmoid(-2 * x) * 2 * (math.exp(-x) + reference.log_sigmoid(x))
            - sigmoid(-2 * x) * sigmoid(-x)
            - sigmoid(2 * x) * math.exp(-x)
        ),
    ),
    "exponential": ({}, lambda x: math.exp(-x), lambda x: -math.exp(-x)),
}


def _value_and_derivative(link, x):
    with jax.enable_x64(True):
        x = jnp.asarray(x, jnp.float64)
        gradient = jax.grad(lambda x: link(x).sum())(x)
        return np.asarray(link(x)), np.asarray(gradient)


@pytest.mark.parametrize("name", LINKS)
def test_values_and_derivatives(name):
    keywords, value, derivative = LINKS[name]
    found = _value_and_derivative(partial(getattr(links, name), **keywords), X)
    np.testing.assert_allclose(found[0], [value(x) for x in X], rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(found[1], [derivative(x) for x in X], rtol=1e-9, atol=1e-14)


def test_soft_labels():
    found = _value_and_derivative(partial(links.soft_label, label_probs=P), X)
    np.testing.assert_allclose(found[0], [reference.logistic(x, p) for x, p in zip(X, P, strict=True)], rtol=1e-12)
    np.testing.assert_allclose(found[1], [sigmoid(x) - p for x, p in zip(X, P, strict=True)], atol=1e-13)


@pytest.mark.parametrize("name", sorted(set(LINKS) - {"exponential"}))
def test_far_out_nothing_overflows(name):
    x = jnp.array([-1e4, -200.0, 200.0, 1e4], jnp.float32)
    link = getattr(links, name)
    assert np.isfinite(link(x)).all() and np.isfinite(jax.grad(lambda x: link(x).sum())(x)).all()


@pytest.mark.parametrize("eps", [0.05, 0.3, 0.49])
def test_rdpo_is_unbiased_under_flips_and_has_no_floor(eps):
    """(1 - eps) l(x) + eps l(-x) = -log sigma(x)."""
    values = _value_and_derivative(partial(links.robust, flip_rate=eps), X)[0]
    flipped = _value_and_derivative(partial(links.robust, flip_rate=eps), -X)[0]
    expected = [reference.logistic(x) for x in X]
    np.testing.assert_allclose((1 - eps) * values + eps * flipped, expected, rtol=1e-9, atol=1e-12)
    far = _value_and_derivative(partial(links.robust, flip_rate=0.1), [50.0])[0]
    np.testing.assert_allclose(far, -6.25, rtol=1e-12)


@pytest.mark.parametrize("eps", [0.1, 0.4])
@pytest.mark.parametrize("name", ["logistic", "exo"])
def test_smoothed_links_have_their_optimum_at_the_labels_odds(name, eps):
    """At x = log((1 - eps) / eps); below it the loss falls, above it rises: no margin grows for ever."""
    optimum = math.log((1 - eps) / eps)
    link = partial(getattr(links, name), label_smoothing=eps)
    derivative = _value_and_derivative(link, [optimum - 0.1, optimum, optimum + 0.1])[1]
    np.testing.assert_allclose(derivative[1], 0.0, atol=1e-15)
    assert derivative[0] < -1e-3 and derivative[2] > 1e-3


def test_ipo_stops_at_a_finite_margin_where_dpo_does_not():
    """Gradient descent on h with one deterministic preference: h* = 1 / (2 tau) against growth without end."""
    tau = 0.1
    with jax.enable_x64(True):
        slopes = jax.grad(partial(links.square, target=1 / (2 * tau))), jax.grad(lambda h: links.logistic(0.1 * h))
        h, logistic = jnp.float64(0.0), jnp.float64(0.0)
        for _ in range(60):
            h, logistic = h - 0.2 * slopes[0](h), logistic - 50 * slopes[1](logistic)
        halfway = logistic
        for _ in range(60):
            logistic = logistic - 50 * slopes[1](logistic)
    np.testing.assert_allclose(h, 5.0, rtol=1e-12)
    assert float(logistic) > float(halfway) + 3 > 20


def test_discopop_is_not_monotone():
    """A local minimum left of 0, a local maximum right of it; and the values that the atlas took down."""
    values, slopes = _value_and_derivative(links.discopop, [-0.2, -0.12, -0.1, 0.0, 0.072, 0.15])
    assert slopes[0] < -0.3 and slopes[3] > 0.3 and slopes[5] < -0.3
    np.testing.assert_allclose(slopes[[1, 4]], 0.0, atol=0.02)
    np.testing.assert_allclose(values[[2, 5]], [0.7874, 0.8493375793], atol=5e-5)


def test_at_its_margin_the_hinge_has_no_gradient():
    assert float(jax.grad(links.hinge)(jnp.float32(1.0))) == 0.0


@pytest.mark.parametrize("link", [partial(links.robust, flip_rate=0.5), partial(links.robust, flip_rate=-0.1)])
def test_robust_refuses(link):
    with pytest.raises(ValueError, match=r"flip_rate must be in \[0, 0.5\)"):
        link(jnp.zeros(1))


@pytest.mark.parametrize("eps", [0.0, 1.0])
def test_exo_refuses(eps):
    with pytest.raises(ValueError, match=r"label_smoothing must be in \(0, 1\)"):
        links.exo(jnp.zeros(1), label_smoothing=eps)
